"""
Findings: everything that is said of a set-up before work is trusted to it, in one table.

`KINDS` is the single truth: an id that is not there cannot be found, README lists the same rows, and
`celery -A proj safeguards check --explain ID` shows the page of each (`diagnose/pages.md`).

| severity | means | a worker with `safeguards_strict` |
|---|---|---|
| error | a promise does not hold | does not start |
| warning | a promise may not hold, or something is not as it was meant | does not start |
| info | good to know | starts |
| unknown | could not be asked, so it is not known to be fine | starts |
"""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters; the worst first."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Kind:
    """What findings of one id have in common."""

    severity: Severity
    title: str


_E, _W, _I, _U = Severity.ERROR, Severity.WARNING, Severity.INFO, Severity.UNKNOWN

KINDS = {
    # a task's declaration
    "SG101": Kind(_W, "may run twice"),
    "SG102": Kind(_W, "cannot be published on commit"),
    "SG103": Kind(_W, "not guarded"),
    # a task's time
    "SG104": Kind(_W, "redelivered while it runs"),
    "SG105": Kind(_I, "nothing bounds its run"),
    "SG106": Kind(_W, "forgotten too early"),
    "SG107": Kind(_W, "limit that the pool ignores"),
    "SG108": Kind(_W, "holds messages without limit"),
    "SG110": Kind(_W, "redelivered while it waits"),
    "SG111": Kind(_W, "perhaps no retry"),
    "SG112": Kind(_W, "attempts that never come"),
    "SG113": Kind(_I, "delayed messages without limit"),
    "SG120": Kind(_W, "its lock may pass on in a short outage of the store"),
    "SG130": Kind(_W, "its transaction may outlive its client"),
    # the broker's visibility timeout, and what it keeps
    "SG140": Kind(_W, "visibility timeout set in vain"),
    "SG141": Kind(_U, "the effective visibility timeout is not known"),
    "SG142": Kind(_W, "nobody redelivers"),
    "SG143": Kind(_W, "may wait for a broker that is gone"),
    "SG144": Kind(_W, "the broker may evict messages or records"),
    "SG145": Kind(_W, "the broker keeps nothing over a restart"),
    "SG146": Kind(_I, "the broker may forget the last minutes"),
    "SG147": Kind(_E, "acknowledged before it runs"),
    "SG148": Kind(_U, "the broker could not be asked"),
    "SG149": Kind(_W, "a queue keeps another visibility timeout"),
    # RabbitMQ, SQS, and settings of Celery
    "SG150": Kind(_W, "longer than RabbitMQ waits"),
    "SG151": Kind(_W, "delays are held by the workers"),
    "SG152": Kind(_I, "dropped after too many deliveries"),
    "SG153": Kind(_W, "an error of its channel ends the worker"),
    "SG154": Kind(_E, "longer than SQS allows"),
    "SG155": Kind(_W, "dead-letter arguments that nobody reads"),
    "SG156": Kind(_W, "dead letters are consumed"),
    "SG157": Kind(_W, "over its limit again and again"),
    "SG158": Kind(_W, "kills its process again and again"),
    "SG159": Kind(_I, "what a cut connection does to running work"),
    # the fleet
    "SG160": Kind(_E, "visibility timeouts differ"),
    "SG161": Kind(_E, "clocks differ"),
    "SG162": Kind(_E, "transports differ"),
    "SG163": Kind(_E, "namespaces differ"),
    "SG164": Kind(_E, "stored formats differ"),
    "SG165": Kind(_I, "versions differ"),
    "SG166": Kind(_U, "the fleet could not be asked"),
    # the store
    "SG170": Kind(_U, "the store could not be asked"),
    # a Django project
    "SG200": Kind(_E, "the app is not installed"),
    "SG201": Kind(_E, "a setting cannot hold"),
    "SG202": Kind(_W, "no Celery app"),
    "SG203": Kind(_W, "a setting that nobody reads"),
    "SG210": Kind(_W, "records in SQLite"),
    "SG211": Kind(_W, "tables are missing"),
    "SG212": Kind(_E, "a router keeps the tables away"),
    "SG220": Kind(_E, "a cache may wipe records and locks"),
    "SG221": Kind(_W, "a cache may wipe messages"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """
    Something that a person should look at.

    Args:
        id: one of `KINDS`.
        about: what it was found on, with the numbers and the fix.
        is_unknown: it could not be asked whether this is so.

    Raises:
        ValueError: no such id.

    """

    id: str
    about: str
    is_unknown: bool = False

    def __post_init__(self) -> None:
        if self.id not in KINDS:
            raise ValueError(f"{self.id!r} is no id of a finding")

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        return Severity.UNKNOWN if self.is_unknown else KINDS[self.id].severity

    @property
    def text(self) -> str:
        """What a person reads."""
        return f"{KINDS[self.id].title}: {self.about}"

    @property
    def is_refused(self) -> bool:
        """Whether a worker with `safeguards_strict` does not start."""
        return self.severity in {Severity.ERROR, Severity.WARNING}

    def __str__(self) -> str:
        return f"{self.id} {self.text}"
