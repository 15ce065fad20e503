"""
What the broker promises, and what it needs to keep it: the hardened Redis transport and the leases of its messages.

    queue ──take──▶ unacked, under a tag of this delivery's own ──ack──▶ gone
      ▲                 │ renewed while its worker lives and its task is within its budget
      └──── restore ────┘ after a visibility timeout without renewal; by a reject; when a worker stops

Three things the stock transport does differently (kombu 5.7, `transport/redis.py`), each a loss or a second run:

- It pops a message, then notes it: killed in between, the message is lost. Here one script does both.
- A restored message keeps its delivery tag: a late acknowledgement of the first delivery removes the entry that
  protects the second. Here each taking mints a tag.
- A connection that is cut restores all messages at once, also those whose bodies run. Here only those that no body runs
  of; the others are acknowledged through the next connection.
"""
