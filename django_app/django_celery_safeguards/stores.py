"""What `safeguards_store_url="django://default"` stands for."""

from urllib.parse import urlsplit

from django.apps import apps
from django.core.exceptions import AppRegistryNotReady, ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections

from celery_safeguards.conf import Settings
from celery_safeguards.errors import ConfigurationError, nearest
from celery_safeguards.wiring import Stores
from django_celery_safeguards.names import APP

_SCHEME = "django"


def store_alias(url: str | None) -> str | None:
    """Return the name of the database that a store's URL means; None: the store is no database of the project."""
    parts = urlsplit(url or "")
    return parts.netloc or DEFAULT_DB_ALIAS if parts.scheme == _SCHEME else None


def open_stores(settings: Settings) -> Stores:
    """
    Return the stores in one of the project's databases; nothing is connected to yet.

    Raises:
        ConfigurationError: the URL names no database of the project, or one that the stores cannot speak to, or the app
            is not installed, or Django is not set up.

    """
    url = settings.store_url or ""
    alias = store_alias(url) or DEFAULT_DB_ALIAS
    try:
        databases, is_installed = connections.settings, apps.is_installed(APP)
    except (ImproperlyConfigured, AppRegistryNotReady) as error:
        raise ConfigurationError(
            f"safeguards_store_url={url!r}: no Django project is set up in this process ({error}): set "
            "DJANGO_SETTINGS_MODULE before the Celery app is made"
        ) from error
    if alias not in databases:
        raise ConfigurationError(f"safeguards_store_url={url!r}: DATABASES has no {alias!r}{nearest(alias, databases)}")
    if not is_installed:
        raise ConfigurationError(f"safeguards_store_url={url!r}: add {APP!r} to INSTALLED_APPS and run migrate")
    # Not before: models can be imported only where the app is installed.
    from django_celery_safeguards.admission import OrmAdmissionStore  # noqa: PLC0415
    from django_celery_safeguards.connection import OwnConnection  # noqa: PLC0415
    from django_celery_safeguards.house import House  # noqa: PLC0415
    from django_celery_safeguards.jobs import OrmJobStore  # noqa: PLC0415
    from django_celery_safeguards.letters import OrmLetterStore  # noqa: PLC0415
    from django_celery_safeguards.sql import is_supported  # noqa: PLC0415
    from django_celery_safeguards.starts import OrmStartCounter  # noqa: PLC0415

    vendor = connections[alias].vendor
    if not is_supported(vendor):
        raise ConfigurationError(f"safeguards_store_url={url!r}: {vendor} is none of postgresql, sqlite, mysql")
    house = House(OwnConnection(alias, settings.store_timeout_seconds), settings.namespace, settings.lease_seconds)
    records = OrmAdmissionStore(house)
    return Stores(
        admission=records,
        locks=records.locks,
        starts=OrmStartCounter(house),
        letters=OrmLetterStore(house),
        jobs=OrmJobStore(house),
    )
