"""
The same shop without safeguards, with everything that Celery itself offers for it.

Late acknowledgement, requeueing when a child dies, automatic retry with backoff: the settings that are recommended
when "no payment may be lost". It has the same rows and constraints, and the demo breaks both shops in the same way.
"""

from celery import Celery

app = Celery("plain", set_as_current=False, include=["example_project.demo.plain_tasks"])
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.task_default_queue = "plain"
app.conf.safeguards_transport = "stock"


@app.on_after_finalize.connect
def _do_without(sender, **_):
    # The other shop's tasks are registered with every app of a process, and what a worker does for them with that.
    sender.steps["consumer"].clear()
