"""Who may at the command line what the admin's permissions say: `safeguards_command_rights` of a Django project."""

from django.contrib.auth import get_user_model
from django.db import Error

from celery_safeguards.cli.rights import Right
from celery_safeguards.errors import StoreUnavailable
from django_celery_safeguards.names import APP

_PERMISSIONS = {
    Right.VIEW: "view_deadletter",
    Right.VIEW_PAYLOAD: "view_payload_deadletter",
    Right.VIEW_LOCKS: "view_leaselock",
    Right.VIEW_JOBS: "view_replayjob",
    Right.TRIAGE: "triage_lettergroup",
    Right.RELEASE: "release_leaselock",
    **{
        each: f"{each}_deadletter"
        for each in (
            *(Right.REPLAY, Right.RESOLVE, Right.DISCARD, Right.ARCHIVE),
            *(Right.EDIT, Right.EXPORT, Right.ERASE),
        )
    },
}


def has_permission(name: str, right: str) -> bool:
    """
    Return whether the user of this name is active and has the permission that the admin asks for.

    Raises:
        StoreUnavailable: the database of the users does not answer.

    """
    try:
        user = get_user_model()._default_manager.get_by_natural_key(name)  # noqa: SLF001 - as Django's backends do
        return bool(user.has_perm(f"{APP}.{_PERMISSIONS[Right(right)]}"))
    except get_user_model().DoesNotExist:
        return False
    except Error as away:
        raise StoreUnavailable(f"the database of the users does not answer: {away}") from away
