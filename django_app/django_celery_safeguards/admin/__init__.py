"""
Dead letters, their groups and replays, idempotency records and locks in Django's admin.

The promise: what is shown are the rows of the store that the project's Celery app uses, and nothing here writes one.
What a person does to a letter goes the way that `celery -A proj safeguards dead ...` goes, so two people, or a person
and a shell, who are at the same letter send one message.

Not covered: letters in Redis. The pages then say where they are.

| room | holds |
|---|---|
| `letters` `groups` `locks` `records` | a list, the page of one row, and what people do to it |
| `replays` | the same of replay jobs; below the others, whose pages lead to it |
| `pages` | what all of these share |

Each room says what it holds; `lint-imports` checks which one knows which.
"""

from django.contrib import admin

from django_celery_safeguards.admin.groups.listing import LetterGroupAdmin
from django_celery_safeguards.admin.letters.listing import DeadLetterAdmin
from django_celery_safeguards.admin.locks.listing import LeaseLockAdmin
from django_celery_safeguards.admin.records import IdempotencyRecordAdmin
from django_celery_safeguards.admin.replays.listing import ReplayJobAdmin
from django_celery_safeguards.models import DeadLetter, IdempotencyRecord, LeaseLock, LetterGroup, ReplayJob

admin.site.register(DeadLetter, DeadLetterAdmin)
admin.site.register(LetterGroup, LetterGroupAdmin)
admin.site.register(ReplayJob, ReplayJobAdmin)
admin.site.register(IdempotencyRecord, IdempotencyRecordAdmin)
admin.site.register(LeaseLock, LeaseLockAdmin)
