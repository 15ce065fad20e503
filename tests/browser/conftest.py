"""
The admin as people use it: a real server, a real broker, a real browser.

A browser is started for each module and ended with it. What drives it runs an event loop in its thread, by greenlets:
that is a thread of its own, with the bodies of the tests, so that nothing else meets the loop, and a failure is written
down by a thread that has no greenlets (CPython 3.11 cannot parse source there).

What each page showed last is kept in `build/screenshots`, for people: a test knows no crooked line.
"""

import contextlib
import inspect
import os
import re
import shutil
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Error, sync_playwright

from tests.browser.desk.seed import PASSWORD
from tests.browser.desk_under_test import Desk
from tests.browser.pages import press
from tests.support import databases, postgres, servers

_HERE = Path(__file__).parent
_SCREENSHOTS = servers.ROOT / "build" / "screenshots"
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.redis)
            item.add_marker(pytest.mark.postgres)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    thread = pyfuncitem.funcargs.get("driving")
    if thread is None:
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    thread.submit(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names}).result()
    return True


@pytest.fixture(scope="module")
def driving():
    """The thread that drives a browser."""
    with ThreadPoolExecutor(1) as thread:
        yield thread


@pytest.fixture(scope="module")
def running_desk(redis_url, postgres_url, tmp_path_factory):
    """The project, its store in PostgreSQL and its users in SQLite."""
    with (
        postgres.fresh_database(postgres_url) as url,
        Desk(redis_url, databases.postgres(url), tmp_path_factory.mktemp("desk")) as desk,
    ):
        yield desk


@pytest.fixture
def desk(running_desk):
    """The project, with an empty queue, and a store that has not been away from anybody."""
    running_desk.forget_messages()
    # Where no test has asked it for half a lease, none of its leases would lapse for one more.
    running_desk.store(lambda wiring: wiring.admission.declare_new())
    return running_desk


@pytest.fixture(scope="module")
def browser(driving):
    """Chromium; where it is missing the test is skipped on a laptop and fails in CI."""
    program = next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        missing = f"none of {', '.join(_PROGRAMS)} is installed"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    driver = driving.submit(sync_playwright().start).result()
    try:
        launch = driver.chromium.launch
        browser = driving.submit(launch, executable_path=program, args=[*_ARGUMENTS, *as_root]).result()
        yield browser
        driving.submit(browser.close).result()
    finally:
        driving.submit(driver.stop).result()


@pytest.fixture
def log_in(browser, desk, driving, request):
    """Log somebody in by the page for it, as `log_in("ann")`, and return a page of a session of his own."""
    contexts = []

    def log_in(person, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.goto(desk.url)
        page.get_by_label("Username").fill(person)
        page.get_by_label("Password").fill(PASSWORD)
        press(page, "Log in")
        return page

    yield log_in
    directory = _SCREENSHOTS / request.path.stem
    name = re.sub(r"[^\w-]+", "-", request.node.name)[:150]
    for number, context in enumerate(contexts):
        driving.submit(_keep_screenshots, context, directory, f"{name}-{number}").result()
        driving.submit(context.close).result()


def _keep_screenshots(context, directory, name):
    directory.mkdir(parents=True, exist_ok=True)
    for number, page in enumerate(context.pages):
        # A page that has crashed or was closed shows nothing any more.
        with contextlib.suppress(Error):
            page.screenshot(path=directory / f"{name}-{number}.png", full_page=True, timeout=5_000)


@pytest.fixture
def letters(desk):
    """Twelve letters of a cause that no other test has."""
    error, now = f"shop.Away{uuid.uuid4().hex[:8]}", time.time()
    kwargs = [{"number": number} for number in range(12)]
    return [
        desk.bury(kwargs=each, error_type=error, error_message="the bank <b>is</b> away", last_failed_seconds=now)
        for each in kwargs
    ]
