"""What the app is called."""

APP = "django_celery_safeguards"
TAG = "celery_safeguards"
"""Of its system checks, and before their ids."""
