"""
Settings: read once, checked at once, under Celery's own names.
"""

import ssl
from datetime import timedelta
from pathlib import Path

import pytest
import redis
from celery import Celery

from celery_safeguards.conf import Settings
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.wiring import open_stores


@pytest.fixture
def read():
    """Read the settings of an app that has these, on a Redis broker unless told otherwise."""
    apps = []

    def read(broker="redis://localhost:6379/0", **settings):
        app = Celery("conf", broker=broker, set_as_current=False)
        apps.append(app)
        app.conf.update(settings)
        return Settings.of(app)

    yield read
    for app in apps:
        app.close()


def test_defaults_are_those_of_the_documentation(read):
    """Whoever sets nothing must get what README says."""
    settings = read()

    assert (settings.namespace, settings.strict) == ("default", False)
    assert (settings.lease_seconds, settings.renew_every_seconds) == (30.0, 10.0)
    assert (settings.deferral_base_seconds, settings.deferral_cap_seconds) == (1.0, 60.0)
    assert settings.deferral_deadline_seconds == 86_400.0


def test_given_settings_are_read(read):
    """A setting that is ignored is worse than one that is refused."""
    settings = read(safeguards_namespace="staging", safeguards_lease_seconds=60, safeguards_strict=True)

    assert (settings.namespace, settings.lease_seconds, settings.strict) == ("staging", 60, True)


def test_none_means_the_default(read):
    """Settings files pass the missing environment variable on as None."""
    assert read(safeguards_lease_seconds=None).lease_seconds == 30.0


def test_settings_are_read_under_celerys_namespace_as_django_projects_have_them(monkeypatch):
    """With `namespace="CELERY"` the names are `CELERY_SAFEGUARDS_...`; ignoring them would use the defaults."""

    class DjangoLike:
        CELERY_BROKER_URL = "redis://localhost:6379/0"
        CELERY_SAFEGUARDS_NAMESPACE = "shop"
        CELERY_SAFEGUARDS_LEASE_SECONDS = 45

    with Celery("conf", set_as_current=False) as app:
        app.config_from_object(DjangoLike, namespace="CELERY")

        settings = Settings.of(app)

    assert (settings.namespace, settings.lease_seconds) == ("shop", 45)


@pytest.mark.parametrize(("namespace", "prefix"), [("CELERY_", "CELERY_"), ("shop", "shop_"), ("shop_", "shop_")])
def test_namespace_is_read_as_celery_reads_it(namespace, prefix):
    """With its underscore or not, in capitals or not: Celery heeds its own settings there, and ours must be, too."""

    def cased(name):
        return f"{prefix}{name}" if prefix.isupper() else f"{prefix}{name}".lower()

    module = type("Module", (), {cased("TASK_ACKS_LATE"): True, cased("SAFEGUARDS_LEASE_SECONDS"): 45})
    with Celery("conf", set_as_current=False) as app:
        app.config_from_object(module, namespace=namespace)

        assert app.conf.task_acks_late is True
        assert Settings.of(app).lease_seconds == 45


def test_unknown_name_under_celerys_namespace_is_refused():
    """A typing error in a Django settings file must not be silent."""

    class DjangoLike:
        CELERY_SAFEGUARDS_LEASE_SECOND = 45

    with Celery("conf", set_as_current=False) as app:
        app.config_from_object(DjangoLike, namespace="CELERY")

        with pytest.raises(ConfigurationError, match="did you mean 'safeguards_lease_seconds'"):
            Settings.of(app)


def test_unknown_name_is_refused_with_the_nearest(read):
    """A misspelt setting would leave the default in force, and nobody would notice."""
    with pytest.raises(ConfigurationError, match=r"safeguards_lease_second is no setting .*'safeguards_lease_seconds'"):
        read(safeguards_lease_second=60)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_seconds", 0),
        ("lease_seconds", -1),
        ("lease_seconds", "30"),
        ("lease_seconds", True),
        ("lease_seconds", float("nan")),
        ("store_wait_seconds", float("inf")),
        ("max_result_bytes", 0),
        ("max_traceback_chars", "all"),
        ("max_traceback_chars", 20_000.0),
        ("lease_seconds", 10**400),
        ("lease_seconds", timedelta(seconds=30)),
        ("spool_directory", 7),
        ("health_directory", ["/run"]),
        ("letter_retention_seconds", -1),
        ("letter_retention_seconds", 60),
        ("letter_retention_seconds", False),
        ("namespace", ""),
        ("namespace", "a b"),
        ("namespace", "{a}"),
        ("namespace", "a:b"),
        ("namespace", 7),
        ("strict", "no"),
        ("strict", 1),
        ("store_url", 7),
        ("release", 42),
        ("release", "x" * 101),
        ("release", "v1\nv2"),
        ("playbooks", "https://wiki.example.com"),
        ("playbooks", {"rate_limited": ""}),
        ("playbooks", {7: "https://wiki.example.com"}),
        ("searchable_arguments", "order_id"),
        ("searchable_arguments", ("order_id", 7)),
        ("searchable_arguments", ("order id",)),
        ("searchable_arguments", ("customer..email",)),
        ("sensitive_arguments", {"email": True}),
        ("redact", 7),
        ("redact", ""),
    ],
)
def test_value_that_cannot_hold_is_refused_by_name_and_value(read, name, value):
    """It would fail later: at the first claim, or in a comparison that is always false."""
    with pytest.raises(ConfigurationError) as refused:
        read(**{f"safeguards_{name}": value})

    assert f"safeguards_{name}={value!r}" in str(refused.value)


@pytest.mark.parametrize(("given", "expected"), [({}, ""), ({"safeguards_release": "v4.2-3-gabc\n"}, "v4.2-3-gabc")])
def test_release_is_what_a_command_prints(read, given, expected):
    """`git describe` ends its line; a release with that end would be another one."""
    assert read(**given).release == expected


@pytest.mark.parametrize("url", ["redis://:secret@host:port/0", "redis://:secret@[host/0", "redis://host:99999/0"])
def test_url_that_nobody_can_read_is_refused_by_the_settings_name(read, url):
    """A traceback of the library for URLs names no setting; the error must not show the password."""
    with Celery("conf", set_as_current=False) as app:
        app.conf.broker_url = url
        with pytest.raises(ConfigurationError, match=r"^(broker|safeguards_store)_url is no URL: ") as at_broker:
            open_stores(Settings.of(app))
    with pytest.raises(ConfigurationError, match=r"^safeguards_store_url is no URL: ") as at_store:
        open_stores(read(safeguards_store_url=url))

    assert "secret" not in f"{at_broker.value}{at_store.value}"


def test_slow_store_and_short_lease_are_refused_together(read):
    """A renewal that may take as long as the lease comes too late."""
    with pytest.raises(ConfigurationError, match=r"store_timeout_seconds=5 .* safeguards_lease_seconds=12"):
        read(safeguards_store_timeout_seconds=5, safeguards_lease_seconds=12)


def test_deferral_base_above_its_cap_is_refused(read):
    """The first delay would already be cut."""
    with pytest.raises(ConfigurationError, match="deferral_base_seconds=90 is above"):
        read(safeguards_deferral_base_seconds=90)


@pytest.mark.parametrize(
    ("broker", "expected"),
    [
        ("redis://:secret@host:6379/3", "redis://:secret@host:6379/3"),
        ("rediss://host:6379/0", "rediss://host:6379/0"),
        ("redis+socket:///var/run/redis.sock", "unix:///var/run/redis.sock"),
        ("amqp://guest@localhost//", None),
        ("memory://", None),
    ],
)
def test_store_is_the_broker_where_that_is_redis(read, broker, expected):
    """One setting less for most projects, and no guess for the others."""
    assert read(broker=broker).store_url == expected


def test_first_of_several_brokers_is_the_store(read):
    """Celery takes a list of brokers for fail-over."""
    with Celery("conf", set_as_current=False) as app:
        app.conf.broker_url = ["redis://one:6379/0", "redis://two:6379/0"]

        assert Settings.of(app).store_url == "redis://one:6379/0"


@pytest.mark.parametrize(
    "several", ["redis://one:6379/3;redis://two:6379/3", ["redis://one:6379/3;redis://two:6379/3"]]
)
def test_first_of_several_brokers_in_one_text_is_the_store(read, several):
    """redis-py reads what follows the first as its database, finds no number there, and takes number 0."""
    with Celery("conf", set_as_current=False) as app:
        app.conf.broker_url = several

        assert Settings.of(app).store_url == "redis://one:6379/3"


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("rediss://host:6379/0?ssl_cert_reqs=CERT_REQUIRED", None, ssl.CERT_REQUIRED),
        ("rediss://host:6379/0?ssl_cert_reqs=CERT_NONE", None, ssl.CERT_NONE),
        ("rediss://host:6379/0?ssl_cert_reqs=optional", None, ssl.CERT_OPTIONAL),
        ("rediss://host:6379/0", {"ssl_cert_reqs": ssl.CERT_NONE}, ssl.CERT_NONE),
        ("redis://host:6379/0", {"ssl_cert_reqs": "CERT_NONE", "ssl_check_hostname": False}, ssl.CERT_NONE),
        ("redis://host:6379/0", {"ssl_cert_reqs": 1, "ssl_ca_certs": "/etc/ca.pem"}, ssl.CERT_OPTIONAL),
        ("rediss://host:6379/0?ssl_cert_reqs=none", {"ssl_cert_reqs": ssl.CERT_REQUIRED}, ssl.CERT_NONE),
    ],
)
def test_store_at_the_broker_is_reached_by_the_brokers_tls(read, url, options, expected):
    """Celery's documentation has these words for the broker; redis-py knows others, and no `broker_use_ssl`."""
    store_url = read(broker=url, broker_use_ssl=options).store_url
    connection = redis.ConnectionPool.from_url(store_url).make_connection()

    assert isinstance(connection, redis.SSLConnection)
    assert connection.cert_reqs == expected
    assert connection.ca_certs == (options or {}).get("ssl_ca_certs")


@pytest.mark.parametrize(("url", "options"), [("redis://host:6379/0", True), ("redis://host:6379/0", {})])
def test_store_at_the_broker_has_no_tls_where_kombu_uses_none(read, url, options):
    """Kombu heeds a dictionary with something in it alone."""
    assert read(broker=url, broker_use_ssl=options).store_url == url


def test_store_may_have_the_words_of_a_brokers_url(read):
    """Both come from the same environment variable."""
    given = "rediss://records:6379/1?ssl_cert_reqs=CERT_REQUIRED"

    assert read(safeguards_store_url=given).store_url == "rediss://records:6379/1?ssl_cert_reqs=required"


def test_own_store_comes_before_the_broker(read):
    """Records want a server that keeps what it is told; brokers often do not."""
    assert read(safeguards_store_url="redis://records:6379/1").store_url == "redis://records:6379/1"


@pytest.mark.parametrize("given", ["/var/spool/letters", Path("/var/spool/letters")])
def test_spool_directory_may_be_text_or_path(read, given):
    """Environment variables are text, settings files have paths."""
    assert read(safeguards_spool_directory=given).spool_directory == Path("/var/spool/letters")


def test_arguments_that_letters_are_found_by_are_a_list_of_names(read):
    settings = read(safeguards_searchable_arguments=["order_id", "customer.e-mail"])

    assert settings.searchable_arguments == ("order_id", "customer.e-mail")


@pytest.mark.parametrize("sensitive", [["customer.email"], ["customer"]])
def test_sensitive_argument_that_is_searchable_needs_a_secret(read, sensitive):
    """A plain hash of an address is the address, to whoever has a list of addresses."""
    searched = {"safeguards_searchable_arguments": ["customer.email"], "safeguards_sensitive_arguments": sensitive}

    with pytest.raises(ConfigurationError, match="safeguards_search_secret is not set"):
        read(**searched)
    assert read(**searched, safeguards_search_secret="s3cret").search_secret == "s3cret"
    # Its terms are plain, and so is a sensitive argument that nobody can search for.
    assert read(**{**searched, "safeguards_sensitive_arguments": ["customers", "customer.email.domain"]})


def test_secret_is_in_no_error_and_no_repr(read):
    with pytest.raises(ConfigurationError) as refused:
        read(safeguards_search_secret=b"s3cret")

    assert "s3cret" not in str(refused.value)
    assert "s3cret" not in repr(read(safeguards_search_secret="s3cret"))
