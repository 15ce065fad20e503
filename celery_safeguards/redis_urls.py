"""Where the store is, if nobody says so: at a broker that is Redis, reached by redis-py as kombu reaches it."""

import re
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from celery_safeguards.errors import ConfigurationError

REDIS_SCHEMES = frozenset({"redis", "rediss", "unix", "redis+socket"})
_TLS_OPTIONS = ("ssl_cert_reqs", "ssl_check_hostname", "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_CERT_REQS = re.compile(r"(?<=[?&]ssl_cert_reqs=)CERT_(\w+)")


def broker_if_redis(app: Any) -> str | None:
    """
    Return an app's broker as a URL of redis-py's; None: it is none of Redis.

    Raises:
        ConfigurationError: its URL cannot be read.

    """
    several = app.conf.broker_write_url or app.conf.broker_url
    first = next(iter(several), None) if isinstance(several, list | tuple) else several
    # One text may name several as well (kombu, `connection.py`).
    url = str(first or "").partition(";")[0]
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        # Without the URL, which has a password.
        raise ConfigurationError(f"broker_url is no URL: {error}") from None
    if scheme not in REDIS_SCHEMES:
        return None
    return _with_tls(redis_url(url), app.conf.broker_use_ssl)


def redis_url(broker_url: str) -> str:
    """Return kombu's words for a socket in the file system, its database and certificates in redis-py's."""
    url = broker_url.replace("redis+socket://", "unix://", 1).replace("virtual_host=", "db=", 1)
    return _CERT_REQS.sub(lambda found: found[1].lower(), url)


def _with_tls(url: str, options: Any) -> str:
    """Return a URL with what `broker_use_ssl` says; what is in the URL comes first, as in kombu."""
    scheme, _, rest = url.partition("://")
    if not options or not isinstance(options, Mapping) or scheme not in {"redis", "rediss"}:
        return url
    place, _, query = rest.partition("?")
    given = {name: _in_words(options[name]) for name in _TLS_OPTIONS if options.get(name) is not None}
    return f"rediss://{place}?{urlencode({**given, **dict(parse_qsl(query))})}".rstrip("?")


def _in_words(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return ssl.VerifyMode(value).name.removeprefix("CERT_").lower()
    return str(value).removeprefix("CERT_").lower() if str(value).startswith("CERT_") else str(value)
