"""
What a person may see of a letter: secrets and personal data are masked wherever it is shown, and nowhere else.

    stored: whole, for the replay ──▶ shown: arguments and headers masked by name, then by the project's function
                                            └─ their values masked in every text beside them: error, traceback, history

Masked by name are the arguments of `safeguards_sensitive_arguments` and whatever is called a password, a token or the
like. What they hold is looked for in the letter's texts as well: an error tends to quote what it could not bear.

The promise: a function that raises, or a body that cannot be looked into, shows a mark and never the value.

Not covered: keys and ids, which are what work is called by; a value of fewer than 4 characters, or a cut one, inside a
text; what Celery itself logs and stores of a failure.
"""

import functools
import inspect
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from celery_safeguards.conf import PREFIX, Settings, is_under
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.shown.masking import FAILED, MASK, Look, RedactionContext, without_content
from celery_safeguards.deadletter.text import clean_text
from celery_safeguards.deadletter.wire import WireMessage
from celery_safeguards.errors import ConfigurationError

SECRETS = (
    *("password", "passwd", "passphrase", "secret", "token", "authorization", "credentials", "cookie", "cvv", "cvc"),
    *("api_key", "apikey", "access_key", "private_key", "secret_key", "card_number", "iban", "ssn"),
)
"""The end of names that are masked in every project, such as `password` and `X-Api-Key`."""
_SUMMARY_CHARS = 300
logger = logging.getLogger(__name__)

Redact = Callable[[RedactionContext, Any], Any]
"""Returns what is shown in place of a value: text for a text, and what JSON can carry for the others."""


class Redaction:
    """
    What is masked in one fleet.

    Args:
        sensitive: names of arguments, dotted into mappings.
        redact: the project's own function, or None.

    """

    def __init__(self, sensitive: Sequence[str] = (), redact: Redact | None = None) -> None:
        self.sensitive = tuple(sensitive)
        self._redact = redact
        self._in_text = _pattern((*SECRETS, *(name.rpartition(".")[2] for name in self.sensitive)))

    @classmethod
    def of(cls, settings: Settings, load: Callable[[str], Any]) -> "Redaction":
        """
        Return what the settings ask for.

        Raises:
            ConfigurationError: `safeguards_redact` cannot be imported, or called.

        """
        redact = settings.redact
        if isinstance(redact, str):
            try:
                redact = load(redact)
            except (ImportError, AttributeError, ValueError) as error:
                raise ConfigurationError(f"{PREFIX}redact={settings.redact!r} cannot be imported: {error}") from error
        if redact is not None and not callable(redact):
            raise ConfigurationError(f"{PREFIX}redact={settings.redact!r} cannot be called")
        return cls(settings.sensitive_arguments, redact)

    def letter(self, letter: Letter, signature: inspect.Signature | None = None) -> Letter:
        """
        Return a letter as a person may see it: to be shown, and never to be sent.

        Args:
            letter: as it is stored.
            signature: of its task; without it, positional arguments have no names.

        """
        look = Look(self, letter.task)
        try:
            wire = look.wire(letter.wire, signature)
        except Exception as error:  # noqa: BLE001 - strangers' values; what is not masked must not be shown
            logger.warning("letter %s cannot be redacted, and is not shown: %s", letter.id, type(error).__name__)
            return replace(
                letter,
                wire=without_content(letter.wire, FAILED),
                error_message=FAILED,
                traceback=FAILED,
                reason=FAILED,
                shown_error=FAILED,
                shown_reason=FAILED,
                history=tuple(replace(entry, detail=FAILED) for entry in letter.history),
                attempt_history=tuple(attempt.without_texts() for attempt in letter.attempt_history),
            )
        return replace(
            letter,
            wire=wire,
            error_message=look.text("error", letter.error_message),
            traceback=look.text("traceback", letter.traceback),
            reason=look.text("reason", letter.reason),
            shown_error=look.text("error", letter.shown_error),
            shown_reason=look.text("reason", letter.shown_reason),
            history=tuple(replace(entry, detail=look.text("history", entry.detail)) for entry in letter.history),
            attempt_history=tuple(
                replace(each, ended=look.text("reason", each.ended), message=look.text("error", each.message))
                for each in letter.attempt_history
            ),
        )

    def summarised(self, letter: Letter, signature: inspect.Signature | None = None) -> Letter:
        """Return a letter with what lists and groups show of it, which do not read its arguments."""
        bare = replace(letter, shown_error="", shown_reason="", history=(), attempt_history=(), traceback="")
        seen = self.letter(bare, signature)
        error, reason = (clean_text(each, _SUMMARY_CHARS) for each in (seen.error_message, seen.reason))
        return replace(letter, shown_error=error, shown_reason=reason)

    def text(self, what: str, text: str, task: str = "") -> str:
        """Return a text that is shown without its letter; what was sensitive in it is known by name alone."""
        return Look(self, task).text(what, text)

    def text_of(self, what: str, text: str, wire: WireMessage, task: str, signature: inspect.Signature | None) -> str:
        """Return a text that a message's failure has left, without what is sensitive in its arguments."""
        look = Look(self, task)
        try:
            look.wire(wire, signature)
        except Exception as error:  # noqa: BLE001 - see `letter`
            logger.warning("a message of %s cannot be redacted: %s", task, type(error).__name__)
            return FAILED
        return look.text(what, text)

    def is_sensitive(self, path: Sequence[str]) -> bool:
        """Whether what a path leads to is masked by its name."""
        last = re.sub(r"[^a-z0-9]+", "_", path[-1].lower()) if path else ""
        return any(last == name or last.endswith(f"_{name}") for name in SECRETS) or is_under(
            ".".join(path), self.sensitive
        )

    def without_names(self, text: str) -> str:
        """Return a text without the values that stand behind a sensitive name."""
        return self._in_text.sub(rf"\g<said>{MASK}", text)

    def asked(self, context: RedactionContext, value: Any) -> Any:
        """Return what the project's function makes of a value."""
        if self._redact is None:
            return value
        try:
            return self._redact(context, value)
        except Exception as error:  # noqa: BLE001 - the project's own; its error may quote the value
            logger.warning("%sredact raised %s on %s %s", PREFIX, type(error).__name__, context.what, context.name)
            return FAILED


# Lists make one for each text that they show.
@functools.lru_cache(maxsize=64)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    # Bounded, and only from the beginning of a word on: strangers' megabytes are looked through.
    named = "|".join(sorted({re.escape(name).replace("_", "[_-]?") for name in names}))
    return re.compile(
        rf"""(?P<said>(?<![\w-])["']?[\w-]{{0,40}}?(?:{named})\\?["']?\s*[:=]\s*)"""
        r"""(?:(?:bearer|basic|token|digest)\s+[^\s,;'"]+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;&)\]}]+)""",
        re.IGNORECASE,
    )
