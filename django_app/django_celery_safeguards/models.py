"""
The tables. Their rows are written by the stores alone, each by its own connection; to change one here changes nothing
that a running task would notice.

A row's id is the digest of its namespace and its exact name, whatever text that is and however long. The columns that
repeat names are for people: cleaned of what a database cannot hold, and cut. Times are the database's, in
microseconds; 0 means never.
"""

from typing import Any

from django.db import models

from celery_safeguards.printable import clean

NAME_CHARS = 255
ONLY_VIEW = ("view",)
"""The permissions of a model that people do not write: nobody could use the others."""


def _id() -> Any:
    return models.CharField(max_length=64, primary_key=True, editable=False)


def _name(**options: Any) -> Any:
    return models.CharField(max_length=NAME_CHARS, **options)


class StoreState(models.Model):
    """What the store keeps of itself, one row for each namespace; see `celery_safeguards._store_view`."""

    namespace = models.CharField(max_length=100, primary_key=True)
    epoch = models.CharField(max_length=64)
    admit_from_us = models.BigIntegerField()
    takeover_from_us = models.BigIntegerField()
    pulse_us = models.BigIntegerField()
    away_from_us = models.BigIntegerField()

    class Meta:
        """Names for people."""

        verbose_name = "store"
        default_permissions = ONLY_VIEW

    def __str__(self) -> str:
        return str(self.namespace)


class IdempotencyRecord(models.Model):
    """One idempotency key: the head as columns, the body as JSON text; see `celery_safeguards.ledger.record`."""

    id = _id()
    namespace = models.CharField(max_length=100)
    scope = _name()
    key = _name()
    task = _name()
    format = models.PositiveSmallIntegerField()
    state = models.CharField(max_length=20)
    owner = _name()
    fence = models.BigIntegerField()
    rev = models.BigIntegerField()
    lease_until_us = models.BigIntegerField()
    lost_us = models.BigIntegerField()
    series_began_us = models.BigIntegerField()
    not_before_us = models.BigIntegerField()
    doubt_us = models.BigIntegerField()
    asking = models.BooleanField()
    body = models.TextField()
    expires_us = models.BigIntegerField()

    class Meta:
        """One index beside the key: every further one would be written with each run of a task."""

        verbose_name = "idempotency record"
        default_permissions = ONLY_VIEW
        indexes = (models.Index(fields=["namespace", "expires_us"], name="sg_record_expires"),)

    def __str__(self) -> str:
        return clean(f"{self.scope}#{self.key}")


class LeaseLock(models.Model):
    """One lock: who holds it, or had it last; see `celery_safeguards.locks.store`."""

    id = _id()
    namespace = models.CharField(max_length=100)
    name = _name()
    owner = _name()
    fence = models.BigIntegerField()
    lease_until_us = models.BigIntegerField()
    since_us = models.BigIntegerField()
    reserved_for = _name()
    reserved_until_us = models.BigIntegerField()
    freed_owner = _name()
    freed_fence = models.BigIntegerField()
    has_line = models.BooleanField()
    """Whether anybody may be waiting: a release that finds it false looks no further."""

    used_us = models.BigIntegerField()
    body = models.TextField()
    """The exact name and the holder, as JSON."""

    class Meta:
        """By last use, for lists and for deleting."""

        verbose_name = "lock"
        default_permissions = ONLY_VIEW
        permissions = (("release_leaselock", "Can release a lock whose owner is dead"),)
        indexes = (models.Index(fields=["namespace", "used_us"], name="sg_lock_used"),)

    def __str__(self) -> str:
        return clean(self.name)


class LockWaiter(models.Model):
    """One place in the line for a lock."""

    id = _id()
    namespace = models.CharField(max_length=100)
    lock_id = models.CharField(max_length=64)
    owner = _name()
    since_us = models.BigIntegerField()
    heard_us = models.BigIntegerField()
    is_kept = models.BooleanField()
    holder = models.TextField()

    class Meta:
        """By lock, for the line; by namespace, for deleting."""

        verbose_name = "place in a lock's line"
        verbose_name_plural = "places in locks' lines"
        default_permissions = ONLY_VIEW
        indexes = (
            models.Index(fields=["lock_id"], name="sg_waiter_lock"),
            models.Index(fields=["namespace", "heard_us"], name="sg_waiter_heard"),
        )

    def __str__(self) -> str:
        return f"{self.owner} for {self.lock_id}"


class StartCount(models.Model):
    """Starts without an outcome of one message without a key."""

    id = _id()
    namespace = models.CharField(max_length=100)
    task_id = _name()
    count = models.PositiveIntegerField()
    expires_us = models.BigIntegerField()

    class Meta:
        """By the end of its retention, for deleting."""

        verbose_name = "count of lost starts"
        verbose_name_plural = "counts of lost starts"
        default_permissions = ONLY_VIEW
        indexes = (models.Index(fields=["namespace", "expires_us"], name="sg_starts_expires"),)

    def __str__(self) -> str:
        return f"{self.task_id}: {self.count}"


class DeadLetter(models.Model):
    """One dead letter: the whole of it as JSON text, and what lists are filtered by as columns."""

    id = _id()
    namespace = models.CharField(max_length=100)
    letter_id = _name()
    state = models.CharField(max_length=20)
    task = _name()
    kind = models.CharField(max_length=40)
    key = _name(blank=True)
    scope = _name(blank=True)
    group = _name(blank=True)
    first_failed_us = models.BigIntegerField()
    last_failed_us = models.BigIntegerField()
    letter = models.TextField()
    # With defaults of the database's own: workers of an older version still write letters while one is deployed.
    task_id = _name(blank=True, db_default="")
    reason = _name(blank=True, db_default="")
    error = _name(blank=True, db_default="")
    attempts = models.PositiveIntegerField(db_default=0)
    fingerprint = models.CharField(max_length=32, blank=True, db_default="")
    """Of the group that it is counted in."""

    terms_written = models.CharField(max_length=32, blank=True, db_default="")
    """Digest of its rows in `LetterTerm`; empty: it has none yet."""

    over_us = models.BigIntegerField(null=True)
    """When its work came to its end; none: it has not."""

    class Meta:
        """What pages are read from, see `ranges`; keys by their beginning; what a person may do."""

        verbose_name = "dead letter"
        default_permissions = ONLY_VIEW
        permissions = (
            ("view_payload_deadletter", "Can view arguments, headers, errors and results of dead letters"),
            ("replay_deadletter", "Can replay dead letter"),
            ("discard_deadletter", "Can discard dead letter"),
            ("resolve_deadletter", "Can say whether a dead letter's work has happened"),
            ("edit_deadletter", "Can send an edited copy of a dead letter"),
            ("archive_deadletter", "Can archive and restore dead letter"),
            ("export_deadletter", "Can export dead letters"),
            ("erase_deadletter", "Can erase one person's data from dead letters"),
        )
        indexes = (
            models.Index(fields=["namespace", "last_failed_us", "id"], name="sg_letter_failed"),
            models.Index(fields=["namespace", "state", "last_failed_us", "id"], name="sg_letter_state"),
            # What follows the id is asked of each entry: a letter that is not wanted is not fetched for it.
            models.Index(
                fields=["namespace", "fingerprint", "state", "last_failed_us", "id", "task", "kind"],
                name="sg_letter_group",
            ),
            models.Index(fields=["namespace", "task", "state", "last_failed_us", "id", "kind"], name="sg_letter_task"),
            models.Index(fields=["namespace", "kind", "state", "last_failed_us", "id"], name="sg_letter_kind"),
            models.Index(fields=["namespace", "state", "over_us", "id"], name="sg_letter_over"),
            # Its operators compare bytes, whatever the language of the database: a key is found by its beginning.
            models.Index(
                fields=["namespace", "key"], name="sg_letter_key", opclasses=["varchar_ops", "varchar_pattern_ops"]
            ),
        )

    def __str__(self) -> str:
        return clean(self.letter_id)


class LetterTerm(models.Model):
    """One term that a dead letter is found by; see `celery_safeguards.deadletter.terms`."""

    id = models.BigAutoField(primary_key=True)
    namespace = models.CharField(max_length=100)
    term = models.CharField(max_length=32)
    letter_row = models.CharField(max_length=64)
    last_failed_us = models.BigIntegerField()
    """Of the letter: the newest of a term are the end of a range of the index."""

    class Meta:
        """By term, for searches; by letter, to be written anew."""

        verbose_name = "term of a dead letter"
        verbose_name_plural = "terms of dead letters"
        default_permissions = ONLY_VIEW
        indexes = (
            models.Index(fields=["namespace", "term", "last_failed_us", "letter_row"], name="sg_term_failed"),
            models.Index(fields=["letter_row"], name="sg_term_letter"),
        )

    def __str__(self) -> str:
        return f"{self.term} of {self.letter_row}"


class LetterGroup(models.Model):
    """Dead letters of one cause: the whole of the group as JSON text, and what lists show and filter by as columns."""

    id = _id()
    namespace = models.CharField(max_length=100)
    fingerprint = models.CharField(max_length=32)
    task = _name()
    kind = models.CharField(max_length=40)
    error_type = _name(blank=True)
    sample = _name(blank=True)
    status = models.CharField(max_length=20)
    assignee = _name(blank=True)
    failures = models.BigIntegerField()
    letters = models.BigIntegerField()
    open_letters = models.BigIntegerField()
    first_failed_us = models.BigIntegerField()
    last_failed_us = models.BigIntegerField()
    group = models.TextField()

    class Meta:
        """Newest failure first, of all and of those of one status; what a person may do."""

        verbose_name = "group of dead letters"
        verbose_name_plural = "groups of dead letters"
        default_permissions = ONLY_VIEW
        permissions = (("triage_lettergroup", "Can say how a group of dead letters stands"),)
        indexes = (
            models.Index(fields=["namespace", "last_failed_us", "id"], name="sg_group_failed"),
            models.Index(fields=["namespace", "status", "last_failed_us", "id"], name="sg_group_status"),
        )

    def __str__(self) -> str:
        return clean(f"{self.task}: {self.error_type.rpartition('.')[2] or self.kind}", NAME_CHARS)


class ReplayJob(models.Model):
    """One replay of many letters: the whole of it as JSON text, and what lists show as columns."""

    id = _id()
    namespace = models.CharField(max_length=100)
    job_id = models.CharField(max_length=64)
    status = models.CharField(max_length=20)
    who = _name()
    chosen = _name()
    fingerprint = models.CharField(max_length=32, blank=True)
    created_us = models.BigIntegerField()
    job = models.TextField()
    # Two jobs of one group cannot be under way: of those that are over it is none, which is unlike any other.
    under_way = models.CharField(max_length=64, null=True, unique=True)  # noqa: DJ001 - see above

    class Meta:
        """Newest first."""

        verbose_name = "replay job"
        default_permissions = ONLY_VIEW
        indexes = (models.Index(fields=["namespace", "created_us"], name="sg_job_created"),)

    def __str__(self) -> str:
        return clean(f"{self.chosen}, by {self.who}", NAME_CHARS)


class ReplayJobPart(models.Model):
    """Some of the letters of a replay job, as JSON text."""

    id = _id()
    namespace = models.CharField(max_length=100)
    job_row = models.CharField(max_length=64)
    letters = models.TextField()

    class Meta:
        """By job, for deleting."""

        verbose_name = "part of a replay job"
        verbose_name_plural = "parts of replay jobs"
        default_permissions = ONLY_VIEW
        indexes = (models.Index(fields=["job_row"], name="sg_job_part"),)

    def __str__(self) -> str:
        return str(self.id)
