"""
Messages that end their process or their worker, by every way there is: started three times, buried once.

celery/celery#9082, Bogdanp/dramatiq#213: a task that is killed is put back for ever, since no code of its own counts.
celery/celery#9596, #10128, #4827, #10194: a hard limit is acknowledged away, put back uncounted, or told twice.
"""

import contextlib
import json
import sys
import uuid

import pytest
import redis
from celery import group

from celery_safeguards import FailureKind
from celery_safeguards.replay import replay
from celery_safeguards.wiring import Wiring
from tests.acceptance import poison_app
from tests.support import apps, servers, workers
from tests.support.announcements import Announcements, is_said
from tests.support.sockets import Cutter
from tests.support.waiting import wait_until

PATIENCE_SECONDS = 30
STARTS = 3
MORE_STARTS = 5


class Poison:
    """Broker, store and workers of one test, and what can be seen of them; leaves nothing behind."""

    def __init__(self, redis_url, directory):
        self.namespace = f"t{uuid.uuid4().hex[:12]}"
        self._redis_url, self._directory = redis_url, directory
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        enter = self._stack.enter_context
        self.redis = enter(redis.Redis.from_url(self._redis_url, decode_responses=True, socket_timeout=5))
        self._stack.callback(lambda: servers.forget(self.redis, self.namespace))
        self.announcements = enter(Announcements())
        self._env = {
            apps.BROKER_URL: self._redis_url,
            apps.STORE_URL: self._redis_url,
            apps.NAMESPACE: self.namespace,
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._env.items():
                patch.setenv(name, value)
            self.app = enter(poison_app.make_app(task_ignore_result=True))
        self.wiring = Wiring.of(self.app)
        self.wiring.admission.declare_new()
        return self

    def __exit__(self, *exc_info):
        self._stack.close()

    def worker(self, concurrency=2, *, broker_url=None, extra_args=(), **settings):
        """Start a worker and wait until it consumes; settings are Celery's."""
        env = {**self._env, poison_app.SETTINGS: json.dumps(settings)}
        env |= {apps.BROKER_URL: broker_url} if broker_url else {}
        worker = workers.start_worker(
            "tests.acceptance.poison_app:app",
            env,
            announcements=self.announcements,
            directory=self._directory,
            concurrency=concurrency,
            extra_args=extra_args,
        )
        self._stack.callback(lambda: sys.stdout.write(f"--- log of {worker.name}\n{worker.log()}\n"))
        self._stack.callback(worker.kill_all)
        return worker.wait_ready()

    def send(self, task, way, number, times=poison_app.ALWAYS):
        """Publish a task that ends by this way and return its id."""
        return self.app.tasks[f"poison.{task}"].apply_async(kwargs=self.arguments(way, number, times)).id

    def arguments(self, way, number, times=poison_app.ALWAYS):
        """Return the arguments of a body."""
        return {"way": way, "number": number, "directory": str(self._directory), "times": times}

    def starts(self, number):
        """Return how often a body was started."""
        file = self._directory / str(number)
        return len(file.read_text().splitlines()) if file.exists() else 0

    def wait_ran(self, number):
        """Wait until a task has run to its end."""
        return self.announcements.wait_for(is_said("ran", number=number), PATIENCE_SECONDS)

    def letters(self):
        """Return all letters."""
        return self.wiring.letters.list(limit=100).letters

    def wait_letter(self):
        """Wait until there is a letter, and return it; there must be one alone."""
        wait_until(self.letters, PATIENCE_SECONDS, "a letter")
        (letter,) = self.letters()
        return letter

    def wait_quiet(self):
        """Wait until the broker holds nothing more."""
        prefix = f"{self.namespace}."
        names = (f"{prefix}{self.namespace}", f"{prefix}unacked", f"{prefix}unacked_index")
        wait_until(lambda: not self.redis.exists(*names), PATIENCE_SECONDS, "the broker is empty")

    def let_messages_time_out(self):
        """Make every message that is taken and not acknowledged older than the visibility timeout."""
        index = f"{self.namespace}.unacked_index"
        servers.make_older_than_any_timeout(self.redis, index)

    def assert_goes_on(self, worker):
        """Have the worker run one more task."""
        self.send("repeatable", "exit", 99, times=0)
        self.wait_ran(99)
        self.wait_quiet()
        assert worker.is_running()


@pytest.fixture
def poison(redis_url, tmp_path):
    """A scene for one test."""
    with Poison(redis_url, tmp_path) as poison:
        yield poison


ENDS = ["kill_child", "exit", "exit_well", "interrupt"]


@pytest.mark.parametrize("task", poison_app.GUARDED)
@pytest.mark.parametrize("way", ENDS)
def test_task_that_ends_its_process_is_started_three_times_and_buried_once(poison, way, task):
    """celery/celery#9082, freelabz/secator#1284: it takes child after child, for ever."""
    worker = poison.worker()
    task_id = poison.send(task, way, 1)

    letter = poison.wait_letter()
    poison.wait_quiet()

    assert (STARTS, FailureKind.WORKER_LOST, task_id) == (poison.starts(1), letter.kind, letter.task_id)
    assert letter.effect_possible
    poison.assert_goes_on(worker)
    assert [letter.id] == [each.id for each in poison.letters()]


@pytest.mark.parametrize("way", ENDS)
def test_plain_celery_starts_it_again_and_again(poison, way):
    """If it stopped by itself, the test above would prove nothing."""
    poison.worker()
    poison.send("plain", way, 1)

    wait_until(lambda: poison.starts(1) > STARTS, 60, "plain Celery starts it once more")


@pytest.mark.smoke
@pytest.mark.parametrize("task", ["keyed", "repeatable"])
def test_task_over_its_hard_limit_is_started_three_times_and_buried_once(poison, task):
    """celery/celery#9596, #4827: exactly one attempt for each limit, and one letter in the end."""
    worker = poison.worker()
    poison.send(f"{task}_limited", "hard_limit", 1)

    letter = poison.wait_letter()
    poison.wait_quiet()

    assert (STARTS, FailureKind.WORKER_TIMEOUT) == (poison.starts(1), letter.kind)
    poison.assert_goes_on(worker)
    assert 1 == len(poison.letters())


@pytest.mark.smoke
def test_task_over_its_hard_limit_that_declares_nothing_is_buried_at_its_first(poison):
    """celery/celery#9596: nobody has said that it may run twice, and its limit says that it may not run on."""
    worker = poison.worker()
    poison.send("undeclared_limited", "hard_limit", 1)

    letter = poison.wait_letter()
    poison.wait_quiet()

    assert (1, FailureKind.WORKER_TIMEOUT) == (poison.starts(1), letter.kind)
    poison.assert_goes_on(worker)


def test_plain_celery_puts_back_what_is_over_its_limit_for_ever(poison):
    """celery/celery#10128: kept instead of acknowledged away, it comes back uncounted."""
    poison.worker()
    poison.send("plain_limited", "hard_limit", 1)

    wait_until(lambda: poison.starts(1) > STARTS, 60, "plain Celery starts it once more")


@pytest.mark.parametrize("task", ["keyed", "repeatable"])
def test_task_that_ends_its_worker_is_buried_and_those_behind_it_are_not(poison, task):
    """celery/celery#3541: each worker that takes it over dies, and what it had prefetched is redelivered every time."""
    poison.send(task, "kill_worker", 1)
    for number in range(10, 14):
        poison.send("repeatable", "exit", number, times=0)
    dead = 0
    while not poison.letters():
        # The stock transport can lose one of those behind it, where the kill comes between its pop and its note.
        worker = poison.worker(1, worker_prefetch_multiplier=4, safeguards_transport="hardened")
        over = lambda: poison.letters() or not worker.is_running()  # noqa: B023, E731
        wait_until(over, PATIENCE_SECONDS, "the worker has died, or a letter is written")
        dead += not worker.is_running()
        poison.let_messages_time_out()
        assert dead <= STARTS + 1, "another worker has died of it"

    for number in range(10, 14):
        poison.wait_ran(number)
    poison.wait_quiet()

    # Without a key nobody has counted the first: the whole worker was gone, and the delivery no redelivery.
    most = STARTS if task == "keyed" else STARTS + 1
    assert most == dead == poison.starts(1)
    assert [1] * 4 == [poison.starts(number) for number in range(10, 14)]
    assert 1 == len(poison.letters())
    poison.assert_goes_on(worker)


def test_plain_celery_loses_worker_after_worker(poison):
    """If plain Celery stopped by itself, the test above would prove nothing."""
    poison.send("plain", "kill_worker", 1)

    for _ in range(MORE_STARTS):
        worker = poison.worker(1)
        worker.wait_exited()
        poison.let_messages_time_out()

    assert MORE_STARTS == poison.starts(1)


@pytest.mark.parametrize("task", poison_app.GUARDED)
@pytest.mark.parametrize("way", ["kill_child", "memory"])
def test_process_that_ends_before_any_safeguard_is_at_work_is_buried_too(poison, way, task):
    """
    A hook or a receiver that kills its process has no claim to lose, and would be put back for ever.

    A `MemoryError` of a hook is raised again in Celery's main process, and ends the whole worker.
    """
    worker = poison.worker()
    poison.send(f"{task}_before", way, 1)

    letter = poison.wait_letter()
    poison.wait_quiet()

    assert (STARTS, FailureKind.WORKER_LOST) == (poison.starts(1), letter.kind)
    poison.assert_goes_on(worker)
    assert 1 == len(poison.letters())


@pytest.mark.parametrize("task", poison_app.GUARDED)
@pytest.mark.parametrize("way", ["recursion", "memory"])
def test_error_that_speaks_of_the_process_ends_as_one_letter(poison, way, task):
    """Celery's main process raises a `MemoryError` again as its own; a recursion is acknowledged away."""
    worker = poison.worker()
    poison.send(task, way, 1)

    letter = poison.wait_letter()
    poison.wait_quiet()

    assert poison.starts(1) <= STARTS + 1
    assert way[:6].title() in letter.error_type
    poison.assert_goes_on(worker)
    assert 1 == len(poison.letters())


def test_plain_celery_leaves_nothing_of_a_recursion(poison):
    """If it did, the test above would prove nothing."""
    poison.worker()
    poison.send("plain", "recursion", 1)

    wait_until(lambda: poison.starts(1), PATIENCE_SECONDS, "it was started")
    poison.wait_quiet()

    assert () == poison.letters()


def test_plain_celery_ends_by_a_memory_error_of_its_child(poison):
    """If it lived, the tests above would prove nothing."""
    worker = poison.worker()
    poison.send("plain", "memory", 1)

    worker.wait_exited()


# --- what takes the count back


@pytest.mark.parametrize("task", ["keyed", "repeatable", "undeclared"])
def test_success_takes_the_count_back(poison, task):
    """celery/celery#5106: starts that were lost long ago would bury work that has succeeded since."""
    poison.worker()
    task_id = poison.send(task, "kill_child", 1, times=STARTS - 1)

    poison.wait_ran(1)
    poison.wait_quiet()

    assert (STARTS, ()) == (poison.starts(1), poison.letters())
    assert 0 == poison.wiring.starts.read(task_id)


@pytest.mark.parametrize("task", ["keyed", "repeatable", "undeclared"])
def test_replay_starts_a_count_of_its_own(poison, task):
    """Buried again at once, poison that was mended could never be run."""
    poison.worker()
    poison.send(task, "kill_child", 1, times=STARTS + 2)
    letter = poison.wait_letter()
    poison.wait_quiet()

    replay(poison.app, letter.id, "ops", may_run_twice=task == "undeclared")

    poison.wait_ran(1)
    poison.wait_quiet()
    assert STARTS + 3 == poison.starts(1)
    is_closed = lambda: poison.wiring.letters.get(letter.id).state == "closed"  # noqa: E731
    wait_until(is_closed, PATIENCE_SECONDS, "the letter is closed")


# --- no false alarms


@pytest.mark.parametrize("task", ["keyed", "repeatable"])
def test_members_of_one_fan_out_have_counts_of_their_own(poison, task):
    """Counted by the root's id, which all of them share, the fourth death of any would bury them all."""
    poison.worker(4)
    numbers = range(1, 7)
    signature = poison.app.tasks[f"poison.{task}"].s
    members = [signature(**poison.arguments("kill_child", number, times=1)) for number in numbers]

    group(members, app=poison.app).apply_async()

    for number in numbers:
        poison.wait_ran(number)
    poison.wait_quiet()
    assert [2] * 6 == [poison.starts(number) for number in numbers]
    assert () == poison.letters()


@pytest.mark.parametrize("task", ["keyed", "repeatable"])
def test_connection_that_is_cut_again_and_again_loses_no_start(poison, redis_url, task):
    """celery/celery#6654: each cut gives the message back while its body runs, and none of these bodies has died."""
    with Cutter(redis_url) as cutter:
        worker = poison.worker(8, broker_url=cutter.url)
        poison.announcements.hold("started", number=1)
        task_id = poison.send(task, "exit", 1, times=0)
        poison.announcements.wait_for(is_said("started", number=1), PATIENCE_SECONDS)

        for cut in range(1, MORE_STARTS + 1):
            cutter.cut()
            again = is_said("task_prerun", task_id=task_id)
            poison.announcements.wait_for(again, PATIENCE_SECONDS, count=cut + 1)
        poison.announcements.open("started")

        poison.wait_ran(1)
        poison.wait_quiet()
        assert () == poison.letters()
        assert worker.is_running()


def test_deferrals_lose_no_start(poison):
    """A message that finds its key busy is delivered many times, and never started."""
    poison.worker(2)
    poison.announcements.hold("started", number=1)
    poison.send("keyed", "exit", 1, times=0)
    poison.announcements.wait_for(is_said("started", number=1), PATIENCE_SECONDS)
    second = poison.send("keyed", "exit", 1, times=0)

    again = is_said("task_prerun", task_id=second)
    poison.announcements.wait_for(again, PATIENCE_SECONDS, count=MORE_STARTS)
    poison.announcements.open("started")

    poison.wait_ran(1)
    poison.wait_quiet()
    assert (1, ()) == (poison.starts(1), poison.letters())
