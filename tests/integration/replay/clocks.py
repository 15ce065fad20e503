"""Time that passes by waiting only, with a worker that works meanwhile."""

from tests.integration.replay.shop import queued, run


class PacedClock:
    """Time that passes by sleeping only."""

    def __init__(self, now=1000.0, wall=1_750_000_000.0):
        self.now, self.begun, self.wall, self.slept = now, now, wall, []

    def wall_seconds(self):
        return self.wall + self.now - self.begun

    def monotonic_seconds(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


class WorkersClock(PacedClock):
    """While somebody waits, a worker runs what is in the queue; `most` at a time."""

    def __init__(self, app, most=1000, **given):
        super().__init__(**given)
        self._app, self._most = app, most
        self.waiting = []

    def sleep(self, seconds):
        super().sleep(seconds)
        self.waiting.append(queued(self._app))
        for _ in range(min(self._most, self.waiting[-1])):
            run(self._app)
