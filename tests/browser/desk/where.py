"""
What the project reads from its environment, in its web server and in its workers.
"""

USERS_FILE = "DESK_USERS_FILE"
DATABASE = "DESK_DATABASE"
"""Django's settings of the database of the store, as JSON."""
STORE_ALIAS = "safeguards"
BROKEN = "DESK_BROKEN"
"""A worker with this fails what is mended later; its value is how much longer the error's text is."""
DEPLOYED = "DESK_DEPLOYED"
"""A worker with this knows a task that others do not know yet."""
