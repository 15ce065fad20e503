"""
Dead letters, their groups and replays, idempotency records and locks in Django's admin.

The promise: what is shown are the rows of the store that the project's Celery app uses, and nothing here writes one.
What a person does to a letter goes the way that `celery -A proj safeguards dead ...` goes, so two people, or a person
and a shell, who are at the same letter send one message.

Not covered: letters in Redis. The pages then say where they are.

| module | holds |
|---|---|
| `shown` | whose rows are shown |
| `reading` `placed_list` | lists and pages that only read; lists that are walked by places |
| `letters` `groups` `replays` `records` `locks` | one model each |
| `letter_page` `letter_rows` | a letter's page; its row, read |
| `prospects` | replay, discard, resolve, resume: who may, and what would happen |
| `asking` | pages that ask before anything is done: all of one make |
| `acting` | what is done to letters: the page that asks, and what became of it |
| `editing` `edit_form` | an edited copy: its page, its form |
| `lock_release` | a lock's release: its page, and what became of it |
| `erasing` | one person's data, erased: its page |
| `deeds` `forms` | what is done, without a request; what a person adds to it |
| `replay_start` `replay_verbs` | a replay of many letters: the form that begins it; what can be done with it then |
| `filters` `presenting` `sparkline` | what lists are narrowed by; values in words, and as a chart |
"""

from django.contrib import admin

from django_celery_safeguards.admin.groups import LetterGroupAdmin
from django_celery_safeguards.admin.letters import DeadLetterAdmin
from django_celery_safeguards.admin.locks import LeaseLockAdmin
from django_celery_safeguards.admin.records import IdempotencyRecordAdmin
from django_celery_safeguards.admin.replays import ReplayJobAdmin
from django_celery_safeguards.models import DeadLetter, IdempotencyRecord, LeaseLock, LetterGroup, ReplayJob

admin.site.register(DeadLetter, DeadLetterAdmin)
admin.site.register(LetterGroup, LetterGroupAdmin)
admin.site.register(ReplayJob, ReplayJobAdmin)
admin.site.register(IdempotencyRecord, IdempotencyRecordAdmin)
admin.site.register(LeaseLock, LeaseLockAdmin)
