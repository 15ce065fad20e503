"""What to do about a failure: the page or the sentence that a project has written down for it."""

from collections.abc import Mapping


def playbook_of(playbooks: Mapping[str, str], *, fingerprint: str, task: str, kind: str) -> str:
    """
    Return what is written down for a group, else for a task, else for a kind of failure; '' where nothing is.

    Args:
        playbooks: by fingerprint, name of a task, or kind.
        fingerprint: of the group.
        task: that failed.
        kind: of the failure.

    """
    return next((playbooks[name] for name in (fingerprint, task, kind) if name in playbooks), "")
