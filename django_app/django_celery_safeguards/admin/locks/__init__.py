"""
Locks: the list and the page of one (`listing`), and its release by a person (`release`).
"""
