"""
One side of the comparison: the suite on a server of its own, and each failure again, up to three times.

A test has passed if it passes once: the suite rests on pauses that a busy machine overruns, on both sides alike.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.dropin.comparison import Outcomes
from tests.dropin.suite import FILES
from tests.support.servers import redis_server

RERUNS = 3
_PLUGINS = Path(__file__).parent / "plugins"
# The suite limits some of its tests itself; a test that hangs must not keep the others from being compared.
_LONGEST_TEST_SECONDS = 300
_RAN = (0, 1)
_running: set[subprocess.Popen[bytes]] = set()


def end_all() -> None:
    """End what runs of any side, which then raises; for an interrupted comparison."""
    for process in tuple(_running):
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Side:
    """
    How the suite is run on one side.

    Args:
        name: for people, and of its folder.
        python: of the suite's environment.
        plugins: beside the one that notes outcomes.
        broker_scheme: of the broker's URL.
        settings: Celery settings on top of the suite's own.

    """

    name: str
    python: Path
    plugins: tuple[str, ...] = ()
    broker_scheme: str = "redis"
    settings: dict[str, object] = field(default_factory=dict)

    def run(self, suite: Path, directory: Path, only: str | None, known: Container[str]) -> Outcomes:
        """
        Run the suite, and what fails again; return how each test ended.

        Args:
            suite: as fetched.
            directory: for a copy of it and the logs.
            only: selects tests, as pytest's -k does; None: all.
            known: tests that cannot pass, and are not run again.

        """
        own = directory / self.name
        shutil.copytree(suite, own)
        # The suite's own way to other settings (`t/integration/conftest.py`).
        (own / "integration-tests-config.json").write_text(json.dumps(self.settings))
        outcomes = self._once(own, [*FILES, *(["-k", only] if only else [])], "first")
        for number in range(1, RERUNS + 1):
            failed = [name for name, (outcome, _) in outcomes.items() if outcome == "failed" and name not in known]
            if failed:
                # Once each time, also what the suite would run again by itself.
                again = self._once(own, [*failed, "-p", "no:rerunfailures"], f"rerun-{number}")
                outcomes |= {name: end for name, end in again.items() if end[0] != "failed"}
        return outcomes

    def _once(self, own: Path, arguments: list[str], name: str) -> Outcomes:
        noted = own / f"{name}.jsonl"
        command = [str(self.python), "-m", "pytest", "-p", "celery.contrib.pytest", "-p", "outcomes"]
        command += [word for plugin in self.plugins for word in ("-p", plugin)]
        command += ["-q", "-p", "no:cacheprovider", f"--timeout={_LONGEST_TEST_SECONDS}", *arguments]
        with redis_server() as server, (own / f"{name}.log").open("wb") as log:
            url = server.url.removeprefix("redis")
            environment = {
                **os.environ,
                "PYTHONPATH": str(_PLUGINS),
                "CELERY_SUITE_OUTCOMES": str(noted),
                "TEST_BROKER": f"{self.broker_scheme}{url}",
                "TEST_BACKEND": server.url,
                "REDIS_HOST": url.split("/")[2].partition(":")[0],
                "REDIS_PORT": str(server.port),
            }
            with subprocess.Popen(
                command, cwd=own, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            ) as process:
                _running.add(process)
                code = process.wait()
                _running.discard(process)
                # Its worker's children, where it has died.
                _end(process)
        if code not in _RAN:
            raise RuntimeError(f"the suite could not be run on {self.name} (exit {code}): {log.name}")
        return {
            each["test"]: (each["outcome"], each["error"]) for each in map(json.loads, noted.read_text().splitlines())
        }
