"""
How long a message may be unacknowledged, and what a broker allows: arithmetic and options, without a broker.
"""

import pytest
from celery import Celery
from kombu.transport.memory import Channel as MemoryChannel
from kombu.transport.redis import Channel as RedisChannel

from celery_safeguards.delivery.channel import HardenedChannel
from celery_safeguards.delivery.visibility import (
    Hold,
    Visibility,
    configured_visibility,
    is_hardened,
    renews,
    rounds_before,
)

IS_57 = hasattr(RedisChannel, "unacked_restore_interval")


@pytest.mark.parametrize(("multiplier", "rounds"), [(1, 0), (4, 3), (10, 9), (0, None)])
def test_a_message_waits_behind_those_that_its_process_has_before_it(multiplier, rounds):
    """Ten prefetched neighbours eat the margin between backoff and timeout (alphagov/notifications-api#3123)."""
    assert rounds_before(multiplier) == rounds


def test_hold_shows_its_sum():
    """Whoever is told "too long" must see which part to shorten."""
    hold = Hold(rounds=3, body_before_seconds=20, body_before="shop.report", delay_seconds=300, body_seconds=5)

    assert str(hold) == ("3 bodies before it x 20 s (shop.report) + a delay of up to 300 s + its limit of 5 s = 365 s")


def test_hold_without_a_limit_says_that_there_is_more():
    """A sum of what happens to be known would read as the whole."""
    hold = Hold(rounds=0, body_before_seconds=20, body_before="shop.report", delay_seconds=300, body_seconds=None)

    assert str(hold) == "a delay of up to 300 s + its body = 300 s and more, as nothing bounds its body"


@pytest.mark.parametrize(
    ("url", "options", "broker", "timeout"),
    [
        ("redis://localhost/0", {}, "redis", 3600),
        ("rediss://localhost/0", {"visibility_timeout": 43_200}, "redis", 43_200),
        ("redis://localhost/0", {"visibility_timeout": "310"}, "redis", 310),
        ("redis://localhost/0", {"visibility_timeout": "long"}, "redis", 3600),
        ("redis://localhost/0", {"global_keyprefix": "x"}, "redis", 3600),
        ("sentinel://localhost/0", {"visibility_timeout": 60}, "redis", 60),
        ("memory://", {}, "memory", None),
        ("amqp://", {"visibility_timeout": 60}, "amqp", None),
        ("nothing-like-it://", {}, "", None),
    ],
)
def test_timeout_before_connecting_is_the_apps_option_or_the_transports_default(url, options, broker, timeout):
    """A timeout that nobody has set is the one that most apps have."""
    app = Celery("visibility", broker=url, set_as_current=False)
    app.conf.broker_transport_options = options

    found = configured_visibility(app)

    assert (found.broker, found.timeout_seconds, found.is_live) == (broker, timeout, False)


@pytest.mark.parametrize(
    ("options", "latest"),
    [
        ({}, 3700),
        ({"unacked_restore_interval": 1, "unacked_restore_throttle": 1}, 3601 if IS_57 else 3700),
        ({"visibility_timeout": 60, "unacked_restore_throttle": 0}, 70 if IS_57 else 160),
    ],
)
def test_a_message_comes_back_a_sweep_later_than_the_timeout(options, latest):
    """People conclude that the timeout is ignored (celery/kombu#2558, celery/celery#5935)."""
    app = Celery("visibility", broker="redis://localhost/0", set_as_current=False)
    app.conf.broker_transport_options = options

    found = configured_visibility(app)

    assert found.latest_seconds == latest
    assert f"comes back after {found.timeout_seconds:g} s to {latest} s" in str(found)


def test_a_broker_without_a_timeout_says_so():
    """ "None" would read as not known."""
    assert str(Visibility(broker="amqp", timeout_seconds=None)) == "amqp: no visibility timeout"


@pytest.mark.parametrize(
    ("channel", "is_renewed", "hardened"),
    [(RedisChannel, True, False), (HardenedChannel, True, True), (MemoryChannel, False, False)],
)
def test_what_a_channel_can_is_known_of_its_class(channel, is_renewed, hardened):
    """What is renewed does not lapse; only the hardened transport keeps through a cut what runs."""
    assert (is_renewed, hardened) == (renews(channel), is_hardened(channel))


def test_redis_that_forgets_at_once_renews_nothing():
    """Without `unacked` there is nothing to renew."""
    assert not renews(type("Forgetful", (RedisChannel,), {"ack_emulation": False}))
