"""
The guarded shop's admin, left open for whoever wants to look at what the demo has done, and to do some of it.

Its workers go on, and a few orders more have died by then: they can be replayed.
"""

import secrets

from django.contrib.auth import get_user_model

from example_project.demo.plan import Fate, Order
from example_project.demo.processes import wait_for_signal, wait_until
from example_project.demo.servers import admin_server

_DEAD_SECONDS = 60
_USER = "admin"
_LEFT_OPEN = tuple(Order(f"B{number:03}", 4_200, Fate.STUCK, "reader@example.com") for number in range(1, 4))


def serve(demo):
    """Open the admin, print its address and login, and return once a signal has come."""
    side = demo.guarded
    _leave_letters_open(side)
    password = secrets.token_urlsafe(12)
    get_user_model().objects.create_superuser(_USER, password=password)
    with admin_server(side.environment()) as url:
        print("", f"admin: {url}  user: {_USER}  password: {password}", sep="\n", flush=True)
        print(f"the workers go on: {len(_LEFT_OPEN)} dead letters are open, to be replayed", flush=True)
        print("Ctrl-C ends all of it, and removes every file", flush=True)
        wait_for_signal()
    # Who ends it does not want to wait for idle workers.
    for each in demo.sides:
        each.stop_seconds = 0.0


def _leave_letters_open(side):
    for order in _LEFT_OPEN:
        side.gateway.inject("fail", order.id, count=None)
        side.publish(order)

    def all_dead():
        return sum(letter.state == "open" for letter in side.letters()) == len(_LEFT_OPEN)

    wait_until(all_dead, _DEAD_SECONDS, "a few orders more have died")
    side.gateway.clear_faults()
