"""The steps of a letter's life and of a group's, for every store that changes one at once or not at all."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence

from celery_safeguards.deadletter import archiving, changes, group
from celery_safeguards.deadletter.group import GroupStatus, LetterGroup
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.deadletter.letter import Letter, LetterUnreadable
from celery_safeguards.deadletter.port.grouping import as_it_is
from celery_safeguards.errors import SafeguardsError


class LetterSteps(ABC):
    """A store of letters but for how they are kept, found and listed; see `LetterStore`."""

    @abstractmethod
    def get(self, letter_id: str) -> Letter | None:
        """See `LetterStore.get`."""

    @abstractmethod
    def _apply(self, letter_id: str, change: changes.Change) -> Letter | None:
        """Change and count a letter; returns it, or None: there is none, or it stays as it is."""

    @abstractmethod
    def _apply_to_group(self, fingerprint: str, change: group.GroupChange) -> LetterGroup | None:
        """Return the changed group; None: there is none."""

    def get_many(self, letter_ids: Sequence[str]) -> Mapping[str, Letter | LetterUnreadable]:
        """See `LetterStore.get_many`."""
        found: dict[str, Letter | LetterUnreadable] = {}
        for letter_id in letter_ids:
            try:
                letter = self.get(letter_id)
            except LetterUnreadable as error:
                found[letter_id] = error
                continue
            if letter is not None:
                found[letter_id] = letter
        return found

    def _apply_each(self, wanted: Mapping[str, changes.Change]) -> Mapping[str, Letter | SafeguardsError | None]:
        """Make a change of each of several letters as `_apply` does, or keep why not."""
        made: dict[str, Letter | SafeguardsError | None] = {}
        for letter_id, change in wanted.items():
            try:
                made[letter_id] = self._apply(letter_id, change)
            except (*changes.OF_ONE_LETTER, LetterUnreadable) as error:
                made[letter_id] = error
        return made

    def _each_found(self, wanted: Mapping[str, changes.Change]) -> Mapping[str, Letter | SafeguardsError]:
        """Make changes of which none leaves a letter as it is: what is not there is refused."""
        made = self._apply_each(wanted)
        return {id_: changes.no_such_letter(id_) if each is None else each for id_, each in made.items()}

    def begin_replays(
        self, new_task_ids: Mapping[str, str], who: str, at_seconds: float, notes: Sequence[HistoryEntry] = ()
    ) -> Mapping[str, Letter | SafeguardsError]:
        """See `LetterStore.begin_replays`."""
        wanted = {
            letter_id: changes.beginning_of_replay(task_id, who, at_seconds, notes)
            for letter_id, task_id in new_task_ids.items()
        }
        return self._each_found(wanted)

    def mark_each_replayed(self, task_ids: Mapping[str, str], at_seconds: float) -> None:
        """See `LetterStore.mark_each_replayed`."""
        self._apply_each({id_: changes.end_of_replay(task_id, at_seconds) for id_, task_id in task_ids.items()})

    def archive(
        self, letter_ids: Sequence[str], who: str, reason: str, at_seconds: float | None = None
    ) -> Mapping[str, Letter | SafeguardsError]:
        """See `LetterStore.archive`."""
        return self._each_found(dict.fromkeys(letter_ids, archiving.archiving(who, reason, at_seconds)))

    def restore(
        self, letter_ids: Sequence[str], who: str, at_seconds: float | None = None, *, reason: str = ""
    ) -> Mapping[str, Letter | SafeguardsError]:
        """See `LetterStore.restore`."""
        return self._each_found(dict.fromkeys(letter_ids, archiving.restoring(who, reason, at_seconds)))

    def begin_replay(
        self, letter_id: str, new_task_id: str, who: str, at_seconds: float, notes: Sequence[HistoryEntry] = ()
    ) -> Letter:
        """See `LetterStore.begin_replay`."""
        return changes.require_found(
            self._apply(letter_id, changes.beginning_of_replay(new_task_id, who, at_seconds, notes)), letter_id
        )

    def resume_replay(self, letter_id: str) -> Letter:
        """See `LetterStore.resume_replay`."""
        letter = changes.require_found(self.get(letter_id), letter_id)
        changes.require_state(letter, "replaying")
        return letter

    def mark_replayed(self, letter_id: str, task_id: str, at_seconds: float | None = None) -> bool:
        """See `LetterStore.mark_replayed`."""
        return self._apply(letter_id, changes.end_of_replay(task_id, at_seconds)) is not None

    def close(self, letter_id: str, note: str, at_seconds: float | None = None) -> bool:
        """See `LetterStore.close`."""
        return self._apply(letter_id, changes.closing(note, at_seconds)) is not None

    def discard(self, letter_id: str, who: str, reason: str, at_seconds: float | None = None) -> Letter:
        """See `LetterStore.discard`."""
        return changes.require_found(self._apply(letter_id, changes.discarding(who, reason, at_seconds)), letter_id)

    def begin_edit(
        self, letter_id: str, new_task_id: str, who: str, detail: str, look: str, at_seconds: float | None = None
    ) -> Letter:
        """See `LetterStore.begin_edit`."""
        change = changes.beginning_of_edit(new_task_id, who, detail, look, at_seconds)
        return changes.require_found(self._apply(letter_id, change), letter_id)

    def add_note(
        self, letter_id: str, what: str, who: str | None, detail: str = "", at_seconds: float | None = None
    ) -> Letter:
        """See `LetterStore.add_note`."""
        return changes.require_found(self._apply(letter_id, changes.noting(what, who, detail, at_seconds)), letter_id)

    def erase(
        self, letter_id: str, who: str, reason: str, last_failed_seconds: float, at_seconds: float | None = None
    ) -> bool:
        """See `LetterStore.erase`."""
        return self._apply(letter_id, changes.erasing(who, reason, last_failed_seconds, at_seconds)) is not None

    def forget_sample(self, fingerprint: str, letter_ids: Container[str]) -> None:
        """See `LetterStore.forget_sample`."""
        self._apply_to_group(fingerprint, group.without_sample(letter_ids))

    def regroup(self, letter_id: str, indexed: Callable[[Letter], Letter] = as_it_is) -> bool:
        """See `LetterStore.regroup`."""
        return self._apply(letter_id, indexed) is not None

    def declare_group(
        self,
        fingerprint: str,
        status: GroupStatus,
        who: str,
        reason: str = "",
        *,
        failures_seen: int | None = None,
        at_seconds: float | None = None,
    ) -> LetterGroup:
        """See `LetterStore.declare_group`."""
        change = group.declared(status, who, reason, failures_seen, changes.or_now(at_seconds))
        return self._change_group(fingerprint, change)

    def assign_group(self, fingerprint: str, assignee: str, who: str, at_seconds: float | None = None) -> LetterGroup:
        """See `LetterStore.assign_group`."""
        return self._change_group(fingerprint, group.assigned(assignee, who, changes.or_now(at_seconds)))

    def annotate_group(self, fingerprint: str, note: str, who: str, at_seconds: float | None = None) -> LetterGroup:
        """See `LetterStore.annotate_group`."""
        return self._change_group(fingerprint, group.annotated(note, who, changes.or_now(at_seconds)))

    def _change_group(self, fingerprint: str, change: group.GroupChange) -> LetterGroup:
        changed = self._apply_to_group(fingerprint, change)
        if changed is None:
            raise group.NoSuchGroup(f"there is no group {fingerprint}")
        return changed
