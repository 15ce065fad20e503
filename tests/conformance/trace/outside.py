"""
The outside, played: effects, and requests that land although their sender died.
"""

from dataclasses import dataclass

from celery_safeguards.policy import DidNotHappen, Happened
from tests.conformance.trace.runs import AFTER_SECONDS, Run


@dataclass(eq=False, slots=True)
class Request:
    """A call of the outside that is on its way."""

    sent_at: float
    sender: Run | None


class Outside:
    """
    The other side.

    Attributes:
        effects: how often the effect took place.
        requests: those that are on their way.

    """

    def __init__(self):
        self.effects = 0
        self.requests = []

    def send(self, run, now):
        """Let a run send its request."""
        self.requests.append(Request(now, run))

    def land(self, request):
        """Let a request have its effect; a sender that is still there sees it."""
        self.requests.remove(request)
        self.effects += 1
        if request.sender is not None:
            request.sender.phase = "landed"

    def land_of(self, run):
        """Let the request of a run land."""
        self.land(next(request for request in self.requests if request.sender is run))

    def land_overdue(self, now):
        """Let land what has been on its way for the longest life of a request."""
        for request in tuple(self.requests):
            if now - request.sent_at > AFTER_SECONDS:
                self.land(request)

    def orphan(self, run, now):
        """Let a run lose its request, which goes on without it."""
        for request in self.requests:
            if request.sender is run:
                # Its longest life is counted from the loss of its sender.
                request.sender, request.sent_at = None, now

    def orphaned(self):
        """Return a request without a sender; None: there is none."""
        return next((request for request in self.requests if request.sender is None), None)

    def find(self):
        """Be the task's function for `Verify`."""
        return Happened() if self.effects else DidNotHappen()
