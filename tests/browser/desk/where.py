"""
What the project reads from its environment, in its web server and in its workers.
"""

USERS_FILE = "DESK_USERS_FILE"
DATABASE = "DESK_DATABASE"
"""Django's settings of the database of the store, as JSON."""
STORE_ALIAS = "safeguards"
