"""Who may: the permissions of this app, by their codenames."""

from typing import Any

from django_celery_safeguards.names import APP


def may(request: Any, *codenames: str) -> bool:
    """Whether whoever asks has all of these permissions."""
    return bool(request.user.has_perms([f"{APP}.{each}" for each in codenames]))
