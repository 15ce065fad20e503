"""What the Django app tells beside the signals of the core; receivers observe, as there."""

from celery.utils.dispatch import Signal

transaction_left_open = Signal(name="transaction_left_open", providing_args={"task_id", "alias", "state"})
"""
A task left a database connection of the project unfit for the next task; what it had not committed is rolled back.

Sender: the task. `alias` names the database, `state` says what was left, in words.
"""
