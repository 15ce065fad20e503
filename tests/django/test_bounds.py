"""
SG130: what lets the transaction of an atomic body outlive its client.
"""

import pytest
from celery import Celery
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper

from celery_safeguards import Idempotent, Safeguards, SafeTask
from celery_safeguards.diagnose.tasks import unbounded_transactions
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.findings import Severity
from tests.support import databases, postgres
from tests.support.sockets import free_port

IDLE = "-c idle_in_transaction_session_timeout=60000"
KEEPALIVES = "-c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"


@pytest.fixture
def findings(postgres_url):
    """Return the findings for an atomic task whose project connects with these options."""

    def find(**changes):
        with postgres.fresh_database(postgres_url) as url:
            given = databases.postgres(url)
            given |= {name: value for name, value in changes.items() if name not in {"options", "pool"}}
            given["OPTIONS"] |= {"options": changes.get("options", "")}
            given["OPTIONS"] |= {name: changes[name] for name in ("pool",) if name in changes}
            with databases.added("bounded", given) as alias, app_with_atomic_task(alias) as app:
                return unbounded_transactions(app)

    return find


def app_with_atomic_task(alias, store_url=None):
    app = Celery("bounds", broker="memory://", set_as_current=False)
    app.conf.safeguards_store_url = store_url or f"django://{alias}"
    key = Idempotent("op:{number}", atomic=alias)

    @app.task(base=SafeTask, name="bounds.pay", shared=False, safeguards=Safeguards(idempotent=key))
    def pay(number):
        return number

    return app


def test_defaults_of_the_server_are_found(findings):
    """A host that loses its power would keep its key for two hours, and a hung worker for ever."""
    idle, keepalives = map(str, findings())

    assert "bounds.pay: database 'bounded': idle_in_transaction_session_timeout is 0" in idle
    assert "notices a dead client host after" in keepalives


def test_bounded_transactions_are_no_finding(findings):
    """Nobody reads a list that never ends."""
    assert [] == findings(options=f"{IDLE} {KEEPALIVES}")


@pytest.mark.parametrize(("options", "found"), [(IDLE, "dead client host"), (KEEPALIVES, "idle_in_transaction")])
def test_each_bound_is_asked_for_by_itself(findings, options, found):
    """Keepalives say nothing of a client that hangs, and the other nothing of one that is gone."""
    (finding,) = findings(options=options)

    assert found in str(finding)


def test_database_that_is_down_does_not_keep_the_worker_from_starting(findings):
    """It waits for its store in any case; what nobody could ask is not known to be fine."""
    (finding,) = findings(PORT=str(free_port()))

    assert (Severity.UNKNOWN, False) == (finding.severity, finding.is_refused)
    assert "database 'bounded' could not be asked" in finding.text


def test_sqlite_has_no_such_bounds(sqlite_alias):
    """A process that dies frees its file."""
    with app_with_atomic_task(sqlite_alias) as app:
        assert [] == unbounded_transactions(app)
    connections[sqlite_alias].close()


def test_worker_whose_records_are_elsewhere_does_not_start(sqlite_alias):
    """Each message would be dropped, one by one."""
    with (
        app_with_atomic_task(sqlite_alias, "memory://") as app,
        pytest.raises(ConfigurationError, match="django://sqlite"),
    ):
        unbounded_transactions(app)


def test_worker_whose_database_never_commits_does_not_start(findings):
    """The same; before, each would have been acknowledged, and its effect gone."""
    with pytest.raises(ConfigurationError, match="autocommit is off"):
        findings(AUTOCOMMIT=False)


def test_bounds_are_asked_without_the_projects_pool(findings):
    """Opened in the main process, a pool would come to each child with its sockets, and without its threads."""
    assert 2 == len(findings(pool=True))
    assert "bounded" not in DatabaseWrapper._connection_pools
