"""What a task puts to the store: its key and fingerprint for given arguments, the rules of its record, its lock."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_safeguards._names import bounded_name
from celery_safeguards.admission.store import RecordKey
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.ledger.canonical import fingerprint
from celery_safeguards.ledger.decide import LedgerPolicy
from celery_safeguards.ledger.key import KeyTemplate, bind, body_signature, check_fingerprint
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.policy import EntityLock, Idempotent, Policy

_MAX_KEY_BYTES = 512


@dataclass(frozen=True, slots=True)
class Plan:
    """The keyed side of one task, worked out once when it is registered."""

    task_name: str
    idempotent: Idempotent
    template: KeyTemplate
    signature: inspect.Signature
    ledger: LedgerPolicy

    @classmethod
    def of(cls, task_name: str, run: Callable[..., Any], policy: Policy) -> "Plan":
        """
        Check a task's key against its signature.

        Raises:
            ConfigurationError: the key, the fingerprint or a function of the policy names what is no parameter.

        """
        if policy.idempotent is None:
            raise ConfigurationError(f"{task_name} is not idempotent")
        signature = body_signature(run)
        template = KeyTemplate(policy.idempotent.key)
        template.check(signature, task_name)
        if policy.idempotent.fingerprint is not None:
            check_fingerprint(policy.idempotent.fingerprint, signature, task_name)
        return cls(task_name, policy.idempotent, template, signature, policy.ledger())

    def arguments(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        """
        Return the arguments by parameter name, defaults filled in.

        Raises:
            KeyRefused: they do not fit the task.

        """
        return bind(self.signature, args, kwargs)

    def key(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> str:
        """
        Return the idempotency key of a call; a very long one as its head and a digest, since it travels as a header.

        Raises:
            KeyRefused: the arguments do not fit, or a field is missing, empty or not stable.

        """
        return bounded_name(self.template.render(self.arguments(args, kwargs)), _MAX_KEY_BYTES)

    def fingerprint(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> str:
        """Return the digest that tells two payloads of one key apart."""
        return fingerprint(self.signature, args, kwargs, fields=self.idempotent.fingerprint)

    def record_key(self, key: str) -> RecordKey:
        """Return the name of the record of an idempotency key."""
        return RecordKey(self.idempotent.scope or self.task_name, key)


@dataclass(frozen=True, slots=True)
class LockPlan:
    """The lock of one task, worked out once when it is registered."""

    lock: EntityLock
    template: KeyTemplate
    signature: inspect.Signature
    places: tuple[tuple[str, int, Any], ...]
    """Where the arguments of a call hold the fields of the key: name, position, default."""

    @classmethod
    def of(cls, task_name: str, run: Callable[..., Any], lock: EntityLock) -> "LockPlan":
        """
        Check a lock's key against the task's signature.

        Raises:
            ConfigurationError: the key names what is no parameter.

        """
        signature, template = body_signature(run), KeyTemplate(lock.key, may_be_constant=True)
        template.check(signature, task_name)
        parameters = list(signature.parameters.values())
        places = tuple(
            # No call has so many positional arguments, `*args` included.
            (name, sys.maxsize if given.kind is inspect.Parameter.KEYWORD_ONLY else at, given.default)
            for name in template.fields
            for at, given in enumerate(parameters)
            if given.name == name
        )
        return cls(lock, template, signature, places)

    def name(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> str:
        """
        Return the name of the lock of a call.

        Raises:
            KeyRefused: the arguments do not fit, or a field is missing, empty or not stable.

        """
        return lock_name(self.lock, self.template.render(self._fields(args or (), kwargs or {})))

    def _fields(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of the key; picked, since binding a whole call costs a tenth of taking the lock."""
        found = {}
        for name, at, default in self.places:
            if at < len(args):
                found[name] = args[at]
            elif name in kwargs:
                found[name] = kwargs[name]
            elif default is not inspect.Parameter.empty:
                found[name] = default
            else:
                return bind(self.signature, args, kwargs)
        return found

    def ask(
        self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, owner: str, holder: Mapping[str, Any]
    ) -> LockAsk:
        """Return the acquisition for a call; see `name`."""
        return LockAsk(name=self.name(args, kwargs), owner=owner, lease_seconds=self.lock.lease_seconds, holder=holder)


def lock_name(lock: EntityLock, rendered: str) -> str:
    """Return the name of a lock: its scope, if it has one, and its rendered key."""
    return bounded_name(f"{lock.scope}#{rendered}" if lock.scope else rendered, _MAX_KEY_BYTES)
