"""A shop that pays once: what `celery_safeguards` looks like in use."""
