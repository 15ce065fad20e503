"""
Replay jobs over a real worker, whose tasks ask a dependency that goes away and comes back.
"""

import socket
import threading
from collections import Counter

import pytest

from celery_safeguards.replay.many.choosing import Choice, make_job
from celery_safeguards.replay.many.running import run_job
from celery_safeguards.wiring import Wiring
from tests.acceptance import replay_app
from tests.support import apps
from tests.support.announcements import is_said
from tests.support.sockets import free_port
from tests.support.waiting import wait_until

SOON = 30
OUTAGE_SECONDS = 4.0


class Dependency:
    """Something that listens on a port, or does not."""

    def __init__(self):
        self.port = free_port()
        self._listener = None

    def comes(self):
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=100)
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def goes(self):
        # A thread that waits in accept() would keep the port open.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._listener = None

    def _serve(self, listener):
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                return


class Scene:
    def __init__(self, app, dependency, announcements):
        self.app, self.dependency, self._announcements = app, dependency, announcements
        self.wiring = Wiring.of(app)

    def dead(self, numbers):
        """Have orders die while nobody listens, and wait for their letters."""
        before = self.opened()
        for number in numbers:
            self.app.tasks["replay.ask"].delay(number)
        wait_until(lambda: self.opened() == before + len(numbers), SOON, f"{len(numbers)} letters are open")

    def opened(self):
        return len(self.wiring.letters.list(state="open", limit=1000).letters)

    def asked(self):
        return Counter(said["number"] for said in self._announcements.heard(is_said("asked")))


@pytest.fixture
def scene(redis_url, namespace, announcements, start_worker, monkeypatch):
    dependency = Dependency()
    env = {apps.BROKER_URL: redis_url, apps.NAMESPACE: namespace, replay_app.DEPENDENCY: str(dependency.port)}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with replay_app.make_app() as app:
        Wiring.of(app).admission.declare_new()
        start_worker("tests.acceptance.replay_app:app", env).wait_ready()
        yield Scene(app, dependency, announcements)


def through_an_outage(scene, numbers, **options):
    """Replay orders; the dependency goes once thirty have succeeded, and comes back four seconds later."""
    scene.dead(numbers)
    scene.dependency.comes()
    back = threading.Event()

    def come_back():
        scene.dependency.comes()
        back.set()

    def go_once(job):
        if job.tally.succeeded >= 30 and not gone:
            gone.append(job)
            scene.dependency.goes()
            threading.Timer(OUTAGE_SECONDS, come_back).start()

    gone = []
    job = make_job(scene.app, Choice(), "ann", per_second=20, stop_at=0, **options)
    done = run_job(scene.app, job.id, on_step=go_once)
    assert back.wait(SOON)
    scene.dependency.goes()
    return done


def test_what_slows_while_letters_fail_loses_fewer_to_an_outage(scene):
    """Each letter that fails again is a call that a dependency in trouble had to refuse, and one more to replay."""
    steady = through_an_outage(scene, range(200), adapts=False)
    rest = steady.tally.failed_again
    # Those that failed again are replayed beside as many others: both jobs have 200 letters.
    adaptive = through_an_outage(scene, range(1000, 1200 - rest))

    assert (steady.status, adaptive.status) == ("done", "done")
    assert steady.tally.succeeded + steady.tally.failed_again == 200
    assert adaptive.tally.succeeded + adaptive.tally.failed_again == 200
    assert rest > 20
    # By how much depends on how soon answers come: under half on a machine that does nothing else.
    assert adaptive.tally.failed_again < rest
    # It has come back towards its pace, and none was left out.
    assert adaptive.tempo.share > 0.5
    assert scene.opened() == adaptive.tally.failed_again


def test_a_replay_of_all_that_fail_at_once_ends(scene):
    """Read on while it sends, it would find each of them again, and again."""
    scene.dead(range(30))

    done = run_job(scene.app, make_job(scene.app, Choice(), "ann", stop_at=0).id)

    assert (done.status, done.tally.sent, done.tally.failed_again) == ("done", 30, 30)
    assert scene.asked() == dict.fromkeys(range(30), 2)
    assert scene.opened() == 30
