"""
Each task's time against what its broker, worker and store allow: found before a message comes twice, with the sum.
"""

from dataclasses import replace

import pytest
from celery.app.defaults import NAMESPACES

from celery_safeguards import Idempotent, RetryPolicy, Safeguards
from celery_safeguards.diagnose.examining import examine
from tests.integration.diagnose.conftest import body, found_in, guard, ids, unrenewed

CAPPED = Safeguards(repeatable=True, retry=RetryPolicy(attempts=9, base_seconds=300, cap_seconds=300))
KEYED = Safeguards(idempotent=Idempotent("op:{number}", on_unknown="rerun"), retry=None)


@pytest.mark.parametrize(("multiplier", "expected"), [(10, ["SG104"]), (1, [])])
def test_backoff_near_the_timeout_is_found_if_neighbours_eat_the_margin(make_app, multiplier, expected):
    """
    A cap of 300 s under a timeout of 310 s: ten prefetched neighbours are in between, and the retry loops multiply
    (alphagov/notifications-api#3123, mozmeao/basket#475).
    """
    app = make_app(broker_transport_options={"visibility_timeout": 310}, worker_prefetch_multiplier=multiplier)
    guard(app, "shop.notify", CAPPED, time_limit=5)
    findings = examine(app, unrenewed(app))

    assert expected == ids(findings, but=("SG113", "SG159"))
    if expected:
        (text,) = [each.text for each in findings if each.id == "SG104"]
        assert "9 bodies before it x 5 s (shop.notify) + a delay of up to 300 s + its limit of 5 s = 350 s" in text
        assert "visibility timeout of 310 s" in text


def test_the_longest_body_of_all_is_before_it(make_app):
    """A worker holds messages of every task: the quick one waits behind the slow one, that nobody guards."""
    app = make_app(broker_transport_options={"visibility_timeout": 310}, worker_prefetch_multiplier=4)
    app.task(body, name="shop.report", shared=False, time_limit=110, acks_late=True)
    guard(app, "shop.quick", time_limit=5)

    assert (
        "3 bodies before it x 110 s (shop.report) + its limit of 5 s = 335 s" in found_in(app, unrenewed(app))["SG104"]
    )


@pytest.mark.parametrize("kind", ["plain", "at most once"])
def test_body_that_is_acknowledged_early_is_before_it_as_well(make_app, kind):
    """It does not count against the prefetch: with a multiplier of 1 a worker holds a message behind it."""
    app = make_app(broker_transport_options={"visibility_timeout": 310}, worker_prefetch_multiplier=1)
    if kind == "plain":
        app.task(body, name="shop.report", shared=False, time_limit=306)
    else:
        guard(app, "shop.report", Safeguards(at_most_once=True), time_limit=306)
    guard(app, "shop.quick", time_limit=5)
    text = found_in(app, unrenewed(app))["SG104"]
    app.conf.worker_disable_prefetch = True

    assert "a body acknowledged early before it of 306 s (shop.report) + its limit of 5 s = 311 s" in text
    assert "SG104" not in found_in(app, unrenewed(app))


def test_prefetch_that_is_off_lets_nothing_wait(make_app):
    """`worker_disable_prefetch` takes a message only when there is room for it (Celery 5.6, Redis)."""
    app = make_app(broker_transport_options={"visibility_timeout": 310}, worker_prefetch_multiplier=4)
    app.conf.worker_disable_prefetch = True
    guard(app, "shop.slow", time_limit=300)

    assert "SG104" not in found_in(app, unrenewed(app))


def test_prefetch_without_limit_is_found(make_app):
    """The last of a thousand messages waits for all the others."""
    app = make_app(worker_prefetch_multiplier=0)
    guard(app, "shop.quick", time_limit=5)

    assert "worker_prefetch_multiplier=0" in found_in(app, unrenewed(app))["SG108"]


def test_deferral_counts_as_a_delay(make_app):
    """A message that found its key busy is held by a worker as well until it is due."""
    app = make_app(broker_transport_options={"visibility_timeout": 50}, worker_prefetch_multiplier=1)
    guard(app, "shop.pay", KEYED, time_limit=5)

    assert "a delay of up to 60 s + its limit of 5 s = 65 s" in found_in(app, unrenewed(app))["SG104"]


def test_delay_that_alone_is_too_long_is_told_once(make_app):
    """Two findings with the same fix would be read as two faults."""
    app = make_app(broker_transport_options={"visibility_timeout": 200}, worker_prefetch_multiplier=1)
    guard(app, "shop.notify", CAPPED, time_limit=5)

    assert ["SG110"] == ids(examine(app, unrenewed(app)), but=("SG113", "SG159"))


@pytest.mark.parametrize(
    ("options", "is_told"),
    [
        ({}, True),
        ({"time_limit": 60}, False),
        ({"safeguards": Safeguards(repeatable=True, max_lease_seconds=60)}, False),
    ],
)
def test_task_that_nothing_bounds_is_told_and_does_not_refuse(make_app, options, is_told):
    """Its sum is not known, which must not read as short; every new project has such tasks."""
    app = make_app()
    guard(app, "shop.sync", **options)
    told = [each for each in examine(app, unrenewed(app)) if each.id == "SG105"]

    assert is_told == bool(told)
    assert [] == [each for each in told if each.is_refused]


def test_early_acknowledgement_has_no_timeout(make_app):
    """The broker has forgotten the message before the body runs."""
    app = make_app(broker_transport_options={"visibility_timeout": 10})
    guard(app, "shop.ping", Safeguards(at_most_once=True), time_limit=600)

    assert [] == ids(examine(app, unrenewed(app)))


def test_renewal_ends_the_comparison(make_app):
    """Held messages do not lapse there, and a finding would ask for what is done already."""
    app = make_app(broker_transport_options={"visibility_timeout": 310}, worker_prefetch_multiplier=10)
    guard(app, "shop.notify", CAPPED, time_limit=500)
    guard(app, "shop.sync")
    around = unrenewed(app)
    renewed = replace(around, visibility=replace(around.visibility, is_renewed=True, is_hardened=True))

    assert {"SG104", "SG105"} <= {each.id for each in examine(app, around)}
    # Celery before 5.6 has no limit of delayed messages to ask for.
    assert {each.id for each in examine(app, renewed)} <= {"SG113"}


@pytest.mark.parametrize(("retention", "is_told"), [(3_000, True), (5_000, False)])
def test_record_that_is_forgotten_before_the_last_redelivery_is_found(make_app, retention, is_told):
    """What comes after it runs again."""
    key = Idempotent("op:{number}", on_unknown="rerun", retention_seconds=retention)
    retry = RetryPolicy(attempts=3, base_seconds=300, cap_seconds=300)
    app = make_app()
    guard(app, "shop.pay", Safeguards(idempotent=key, retry=retry), time_limit=100)
    found = found_in(app, unrenewed(app))

    assert is_told == ("SG106" in found)
    if is_told:
        assert "delays of up to 600 s + 3 bodies of 100 s + a redelivery after 3700 s = 4600 s" in found["SG106"]


def test_total_time_bounds_how_long_a_record_is_needed(make_app):
    """A policy that would retry for ever has an end, and needs no year of records."""
    key = Idempotent("op:{number}", on_unknown="rerun", retention_seconds=5_000)
    app = make_app()
    for name, total in (("shop.short", 1_000), ("shop.long", 2_000)):
        retry = RetryPolicy(attempts=10**6, base_seconds=300, cap_seconds=300, total_seconds=total)
        guard(app, name, Safeguards(idempotent=key, retry=retry), time_limit=100)
    (told,) = [each.text for each in examine(app, unrenewed(app)) if each.id == "SG106"]

    assert "shop.long" in told
    assert "total_seconds=2000 + a last body of 100 s + a redelivery after 3700 s = 5800 s" in told


@pytest.mark.parametrize(
    ("pool", "options"),
    [
        ("prefork", []),
        ("gevent", ["soft_time_limit"]),
        ("threads", ["time_limit", "soft_time_limit"]),
        ("solo", ["time_limit", "soft_time_limit"]),
        ("eventlet", ["time_limit", "soft_time_limit"]),
    ],
)
def test_limits_that_a_pool_ignores_are_told(make_app, pool, options):
    """A body hangs for ever, under a limit that somebody has set (celery/celery#1958, #5786, #3747)."""
    app = make_app("memory://", worker_pool=pool)
    guard(app, "shop.sync", time_limit=60, soft_time_limit=50)
    told = [each.text for each in examine(app, unrenewed(app)) if each.id == "SG107"]

    assert [f"{option} does nothing in the pool" in text for option, text in zip(options, told, strict=True)] == [
        True for _ in options
    ]


def test_many_long_delays_are_told_where_nothing_bounds_them(make_app):
    """Each fills the worker's memory, and raises its prefetch count."""
    app = make_app()
    guard(app, "shop.notify", CAPPED, time_limit=5)
    without = found_in(app, unrenewed(app))
    has_limit = "eta_task_limit" in NAMESPACES["worker"]
    app.conf.worker_eta_task_limit = 100

    assert has_limit == ("SG113" in without)
    assert "SG113" not in found_in(app, unrenewed(app))


# --- RabbitMQ


def test_consumer_timeout_is_compared_with_the_sum(make_app):
    """RabbitMQ closes the channel, and all that the worker holds comes again (celery/celery#6760)."""
    app = make_app("amqp://", broker_channel_error_retry=True, worker_prefetch_multiplier=2)
    guard(app, "shop.report", CAPPED, time_limit=900)
    text = found_in(app, unrenewed(app))["SG150"]

    assert "1 body before it x 900 s (shop.report) + a delay of up to 300 s + its limit of 900 s = 2100 s" in text
    assert "consumer_timeout of RabbitMQ of 1800 s" in text


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [({"safeguards_consumer_timeout_seconds": 2_100}, False), ({"safeguards_consumer_timeout_seconds": 2_099}, True)],
)
def test_servers_own_timeout_is_given_by_a_setting(make_app, changes, is_told):
    """No client can ask for it."""
    app = make_app("amqp://", broker_channel_error_retry=True, worker_prefetch_multiplier=2, **changes)
    guard(app, "shop.report", CAPPED, time_limit=900)

    assert is_told == ("SG150" in found_in(app, unrenewed(app)))
