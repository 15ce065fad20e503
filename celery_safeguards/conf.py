"""
Settings: Celery settings named `safeguards_*`.

Each is declared once, with its unit and default; an unknown `safeguards_*` name or a value that cannot hold stops the
worker with the nearest valid choice.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from celery_safeguards.errors import ConfigurationError, nearest
from celery_safeguards.redis_urls import broker_if_redis, redis_url

PREFIX = "safeguards_"
MEMORY_URL = "memory://"
STOCK, HARDENED = "stock", "hardened"
CHOICES = {
    "transport": (STOCK, HARDENED),
    "large_messages": ("warn", "deny"),
    "bury_expired": ("started", "always", "never"),
}
_ARGUMENT = re.compile(r"[^\W\d]\w*(\.[^.\s]+)*")
_TEXTS = ("searchable_arguments", "sensitive_arguments")
LEAST_RETENTION_SECONDS = 3_600
MOST_RELEASE_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one Celery app."""

    namespace: str = "default"
    """Names the fleet that shares keys: the same in web processes and workers, another one per environment."""

    release: str = ""
    """Names the version of the project's own code that this process runs, such as `git describe` gives it: letters and
    their groups say in which releases they failed. Empty: they say nothing of it."""

    store_url: str | None = None
    """Where records, claims, locks and letters are: Redis, or another store that is installed, by the URL's scheme.
    Defaults to the broker's URL where that is Redis; else, in eager mode, to the memory of the process; else to what an
    installed package offers, as the Django app does with the project's default database."""

    store_timeout_seconds: float = 2.0
    """How long one round trip to the store may take. Must be below a third of the lease."""

    transport: str = "stock"
    """How messages are taken from a Redis broker: `"stock"`, as kombu does, or `"hardened"`; the same for all workers
    of one broker."""

    strict: bool = False
    """Refuse to start a worker that has findings."""

    lease_seconds: float = 30.0
    """How long a claim holds without renewal. The worker's main process renews it every third of this."""

    consumer_timeout_seconds: float | None = None
    """How long RabbitMQ leaves a message unacknowledged: its `consumer_timeout`, which no client can ask for. Unset,
    its own default of 1,800 s is taken, and said not to be known."""

    settle_retry_seconds: float = 0.2
    """First pause between two tries to write an outcome; tries end with the lease."""

    store_wait_seconds: float = 10.0
    """How long a pool child waits for a store that is down before it puts the message off; at most half a lease."""

    deferral_base_seconds: float = 1.0
    """First delay of a message that found its key busy; doubles each time."""

    deferral_cap_seconds: float = 60.0
    """Longest delay of a deferred message."""

    deferral_deadline_seconds: float = 86_400.0
    """A message put off for longer than this becomes a dead letter."""

    eager_wait_seconds: float = 5.0
    """How long eager execution waits for a busy key before it raises."""

    publish_timeout_seconds: float = 10.0
    """How long one publish may take in all: the wait for a producer, the connection, the write and every repetition."""

    max_message_bytes: int = 1_048_576
    """A first publish whose encoded body is larger is warned of or denied: see `large_messages`."""

    large_messages: str = "warn"
    """`"warn"` sends a message above `max_message_bytes` and logs it; `"deny"` refuses it."""

    bury_expired: str = "started"
    """Which expired messages become dead letters: those that were `"started"` before, `"always"` all, or `"never"`."""

    max_result_bytes: int = 262_144
    """A larger result is not stored: a duplicate without a continuation gets a marker instead."""

    max_letter_bytes: int = 16_777_216
    """A letter larger than this keeps the head and the digest of its body, and cannot be replayed."""

    letter_retention_seconds: int = 7_776_000
    """How long letters are kept whose work is over, closed or discarded, from then on: 90 days. At least 3,600; 0 keeps
    them for ever. `safeguards store purge` removes them; what is not over is never removed."""

    max_traceback_chars: int = 20_000
    """Tracebacks in records and letters keep their last part up to this length."""

    searchable_arguments: tuple[str, ...] = ()
    """Arguments that letters are found by: names of the task's parameters, dotted into mappings, such as `order_id` and
    `customer.email`. The same wherever letters are written and looked for; after a change, say `dead regroup`."""

    sensitive_arguments: tuple[str, ...] = ()
    """Arguments that are personal or secret, with all that is in them. A searchable one is in the index as a hash that
    is keyed by `search_secret`."""

    redact: str | Callable[..., Any] | None = None
    """Says what is shown in place of a value of a letter, beside what is masked by name: a function of a context and
    the value, or its dotted name; see `deadletter.shown.redaction` and `deadletter.shown.masking.RedactionContext`."""

    command_rights: str | Callable[[str, str], bool] | None = None
    """Says whether a person has a right, before a command does anything: a function of a name and one of
    `cli.rights.Right`, or its dotted name. Unset, whoever can run a command may."""

    playbooks: Mapping[str, str] = field(default_factory=dict)
    """What to do about failures, shown with letters and groups: an address or a sentence, by the fingerprint of a
    group, the name of a task or a kind of failure; the first of these that is there."""

    search_secret: str | None = field(default=None, repr=False)
    """Keys the hashes of sensitive arguments. In a Django project its `SECRET_KEY`, unless this is set."""

    job_retention_seconds: float = 7_776_000
    """How long a replay job that is over is kept, from when it was made."""

    health_interval_seconds: float = 5.0
    """Pause between two signs of life that a worker writes."""

    health_directory: Path | None = None
    """Where workers write them, for `safeguards health`. Unset: `celery-safeguards-<uid>` in the system's directory for
    temporary files."""

    spool_directory: Path | None = None
    """Where letters go while their store is down. Unset: the message then stays unacknowledged."""

    @classmethod
    def of(cls, app: Any) -> "Settings":
        """
        Read the settings of a Celery app.

        Raises:
            ConfigurationError: an unknown name, or a value of the wrong type or range.

        """
        known = {each.name for each in fields(cls)}
        given = _given(app)
        for name in sorted(given.keys() - known):
            hint = nearest(f"{PREFIX}{name}", [f"{PREFIX}{each}" for each in known])
            raise ConfigurationError(f"{PREFIX}{name} is no setting of celery-safeguards{hint}")
        if "store_url" not in given:
            # Eager execution is for tests of one process, which should need no server.
            given["store_url"] = broker_if_redis(app) or (MEMORY_URL if app.conf.task_always_eager else _offered_url)
        elif isinstance(given["store_url"], str):
            given["store_url"] = redis_url(given["store_url"])
        if _offered_secret is not None:
            given.setdefault("search_secret", _offered_secret)
        for name in ("spool_directory", "health_directory"):
            if given.get(name):
                given[name] = _path(name, given[name])
        if isinstance(given.get("release"), str):
            # A file or a command's output ends with a new line.
            given["release"] = given["release"].strip()
        for name in _TEXTS:
            if isinstance(given.get(name), list):
                given[name] = tuple(given[name])
        return cls(**given)

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_choices()
        self._check_functions()
        self._check_search()
        self._check_playbooks()
        if not isinstance(self.strict, bool):
            raise ConfigurationError(f"{PREFIX}strict={self.strict!r}: give True or False")
        if self.store_url is not None and not isinstance(self.store_url, str):
            raise ConfigurationError(f"{PREFIX}store_url={self.store_url!r}: give a URL")
        if not isinstance(self.namespace, str) or not self.namespace or set(self.namespace) & set("{}: "):
            raise ConfigurationError(
                f"{PREFIX}namespace={self.namespace!r}: give a short name without spaces, colons or braces"
            )
        release = self.release
        if not isinstance(release, str) or len(release) > MOST_RELEASE_CHARS or not release.isprintable():
            raise ConfigurationError(
                f"{PREFIX}release={release!r:.200}: give a text of at most {MOST_RELEASE_CHARS} printable characters"
            )
        if self.store_timeout_seconds > self.lease_seconds / 3:
            raise ConfigurationError(
                f"{PREFIX}store_timeout_seconds={self.store_timeout_seconds} must not exceed a third of "
                f"{PREFIX}lease_seconds={self.lease_seconds}: a renewal that waits longer than that comes too late"
            )
        if self.deferral_base_seconds > self.deferral_cap_seconds:
            raise ConfigurationError(
                f"{PREFIX}deferral_base_seconds={self.deferral_base_seconds} is above "
                f"{PREFIX}deferral_cap_seconds={self.deferral_cap_seconds}"
            )

    def _check_numbers(self) -> None:
        retention = self.letter_retention_seconds
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None and each.default is None:
                continue
            if each.name == "letter_retention_seconds" and value == 0 and not isinstance(value, bool):
                continue
            if each.name.endswith(("_seconds", "_bytes", "_chars")) and (
                isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max
            ):
                raise ConfigurationError(f"{PREFIX}{each.name}={value!r}: give a number above 0")
            if each.name.endswith("_chars") and not isinstance(value, int):
                raise ConfigurationError(f"{PREFIX}{each.name}={value!r}: give a whole number above 0")
        if 0 < retention < LEAST_RETENTION_SECONDS:
            raise ConfigurationError(
                f"{PREFIX}letter_retention_seconds={retention!r}: give at least {LEAST_RETENTION_SECONDS}, or 0 to "
                "keep letters for ever: who is slow to write a letter must find the one that is there"
            )

    def _check_choices(self) -> None:
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                given = ", ".join(repr(each) for each in choices)
                raise ConfigurationError(f"{PREFIX}{name}={value!r}: give one of {given}{nearest(value, choices)}")

    def _check_functions(self) -> None:
        for name in ("redact", "command_rights"):
            value = getattr(self, name)
            if value is not None and not (callable(value) or (isinstance(value, str) and value)):
                raise ConfigurationError(f"{PREFIX}{name}={value!r}: give a function or its dotted name")

    def _check_search(self) -> None:
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(x, str) and _ARGUMENT.fullmatch(x) for x in value):
                raise ConfigurationError(
                    f"{PREFIX}{name}={value!r}: give a list of arguments' names, such as ['order_id', 'customer.email']"
                )
        if self.search_secret is not None and not (isinstance(self.search_secret, str) and self.search_secret):
            raise ConfigurationError(f"{PREFIX}search_secret: give a text; it is not shown here")
        keyed = [each for each in self.searchable_arguments if is_under(each, self.sensitive_arguments)]
        if keyed and self.search_secret is None:
            raise ConfigurationError(
                f"{PREFIX}search_secret is not set, and {PREFIX}sensitive_arguments has {', '.join(keyed)}, which is "
                "searchable: without a secret whoever reads the index could guess the values"
            )

    def _check_playbooks(self) -> None:
        given = self.playbooks
        texts = [*given.keys(), *given.values()] if isinstance(given, Mapping) else [None]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise ConfigurationError(
                f"{PREFIX}playbooks={given!r}: give addresses or sentences by names, such as "
                "{'rate_limited': 'https://wiki.example.com/rate-limits'}"
            )

    @property
    def renew_every_seconds(self) -> float:
        """Pause between two renewals."""
        return self.lease_seconds / 3


def is_under(argument: str, names: Sequence[str]) -> bool:
    """Whether an argument, dotted into mappings, is one of these or in one of them."""
    return any(argument == name or argument.startswith(f"{name}.") for name in names)


_offered_url: str | None = None
_offered_secret: str | None = None


def offer_store(url: str | None) -> None:
    """
    Name the store of all apps of this process that are given none and whose broker is not Redis; None: there is none.

    Safe when: called again; called before an app's settings are first read, as the Django app is when it is ready.
    """
    global _offered_url  # noqa: PLW0603 - of the process, as the set-up of Django is
    _offered_url = url


def offer_secret(secret: str | None) -> None:
    """Name the secret of all apps of this process that are given none; see `offer_store`."""
    global _offered_secret  # noqa: PLW0603 - see there
    _offered_secret = secret


def namespaced_prefix(app: Any) -> str | None:
    """
    Return what our settings begin with under an app's namespace, in capitals; None: it has none.

    Celery takes a namespace with its underscore or without, and for one in small letters names in small letters (celery
    5.7, `utils/collections.py`, `ConfigurationView`).
    """
    return f"{app.namespace.rstrip('_')}_{PREFIX}".upper() if app.namespace else None


def _given(app: Any) -> dict[str, Any]:
    """Return our settings: `safeguards_x`, or `CELERY_SAFEGUARDS_X` under Celery's namespace, as Django has them."""
    long = namespaced_prefix(app)
    by_long, by_short = {}, {}
    # By name, not `items()`: Django's settings, while a test overrides one, list names that they do not give.
    for name in app.conf:
        if not isinstance(name, str):
            continue
        if name.startswith(PREFIX):
            by_short[name.removeprefix(PREFIX)] = app.conf[name]
        elif long is not None and name.upper().startswith(long):
            by_long[name[len(long) :].lower()] = app.conf[name]
    return {name: value for given in (by_long, by_short) for name, value in given.items() if value is not None}


def _path(name: str, value: Any) -> Path:
    try:
        return Path(value)
    except TypeError:
        raise ConfigurationError(f"{PREFIX}{name}={value!r}: give a path") from None
