"""Letters and their groups in Redis."""

from celery_safeguards.deadletter.redis.store import RedisLetterStore

__all__ = ["RedisLetterStore"]
