"""Whose rows the admin shows: those of the store that the project's Celery app uses."""

import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from celery_safeguards.conf import Settings
from celery_safeguards.deadletter.letter import Letter
from celery_safeguards.deadletter.retention import kept_in_words
from celery_safeguards.deadletter.search import Search
from celery_safeguards.deadletter.shown.masking import FAILED
from celery_safeguards.deadletter.shown.playbook import playbook_of
from celery_safeguards.errors import ConfigurationError
from celery_safeguards.pipeline.indexing import redaction_of
from celery_safeguards.wiring import Wiring
from django_celery_safeguards.celery_apps import current_app
from django_celery_safeguards.house import stored_namespace
from django_celery_safeguards.stores import store_alias


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """
    A store as the admin finds it.

    Attributes:
        alias: of its database; None: its rows cannot be shown.
        namespace: as its rows name it.
        notice: why they cannot be shown.

    """

    alias: str | None = None
    namespace: str = ""
    notice: str = ""


def shown_search() -> Search:
    """Return what letters of the project's Celery app are found by, beside their names."""
    try:
        return Wiring.of(current_app()).search
    except ConfigurationError:
        # The list says so itself: `Shown.notice`.
        return Search()


def seen_text(what: str, text: str, task: str = "") -> str:
    """Return a text of a letter or a record that is shown without the rest of it, as a person may see it."""
    try:
        return redaction_of(Wiring.of(current_app())).text(what, text, task)
    except ConfigurationError:
        # There is no store then, and nothing of it to be seen.
        return FAILED


def shown_store() -> Shown:
    """Return the store of the project's Celery app; nothing is connected to."""
    app: Any = current_app()
    try:
        settings = Settings.of(app)
        alias, scheme = store_alias(settings.store_url), urlsplit(settings.store_url or "").scheme
        if scheme and alias is None:
            return Shown(
                notice=f"The Celery app {app.main!r} keeps what the safeguards know at {scheme}://, not in a database "
                "of this project, so nothing is listed here. Ask by celery -A <project> safeguards dead list."
            )
        Wiring.of(app)
    except ConfigurationError as error:
        return Shown(
            notice=f"The store of the Celery app {app.main!r} cannot be found: {error}. If it is not this project's "
            "app, import that one in the project's __init__.py."
        )
    return Shown(alias=alias, namespace=stored_namespace(settings.namespace))


def kept_for(letter: Letter) -> str:
    """Return how long a letter is still kept, in words; see `kept_in_words`."""
    return kept_in_words(letter, Settings.of(current_app()).letter_retention_seconds, time.time())


def playbook_for(fingerprint: str, task: str, kind: str) -> str:
    """Return what the project has written down for a failure; see `playbook_of`."""
    return playbook_of(Settings.of(current_app()).playbooks, fingerprint=fingerprint, task=task, kind=kind)
