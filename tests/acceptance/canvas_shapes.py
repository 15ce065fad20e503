"""
The shapes of the canvases under test, what each tells in the end, and how many orders it charges.
"""

import uuid

from celery import chain, chord, group


class Parts:
    """
    The signatures of one canvas.

    Args:
        app: of the test.
        orders: the order ids begin with it; two canvases of the same orders are one operation twice.
        canvas: its name, by which its end is told.
        hit: the task of the member that is hit.
        member: the task of the others.
        body: the task of a chord's body.
        errbacks: whether the member that is hit has some.

    """

    def __init__(self, app, orders, canvas, *, hit="add", member="add", body="total", errbacks=True):
        self._tasks, self._orders, self._canvas = app.tasks, orders, canvas
        self._hit, self._member, self._body = hit, member, body
        self._has_errbacks = errbacks
        self.hit_id = uuid.uuid4().hex

    def hit(self, *value):
        """Return the member that is hit, with an errback of each kind."""
        signature = self._sign(self._hit, *value, order_id=f"{self._orders}-hit").set(task_id=self.hit_id)
        for errback in self._errbacks():
            signature.link_error(errback)
        return signature

    def add(self, number, *value):
        return self._sign(self._member, *value, order_id=f"{self._orders}-{number}")

    def total(self):
        """Return a chord's body, whose result or failure is told."""
        body = self.then_tell(self._sign(self._body, order_id=f"{self._orders}-body"))
        body.link_error(self._sign("tell_failure", canvas=self._canvas, of="body"))
        return body

    def tell(self):
        return self._sign("tell", canvas=self._canvas)

    def then_tell(self, signature):
        signature.link(self.tell())
        return signature

    def _errbacks(self):
        if not self._has_errbacks:
            return
        yield self._sign("tell_failure", canvas=self._canvas, of="member")
        yield self._sign("tell_error", canvas=self._canvas)
        yield self._sign("compensate", order_id=f"{self._orders}-back")

    def _sign(self, task, *value, **named):
        return self._tasks[f"canvas.{task}"].s(*value, **named)


def _chain(its):
    return chain(its.add(1, 0), its.hit(), its.add(3), its.tell())


def _link(its):
    first = its.hit(0)
    first.link(its.then_tell(its.add(2)))
    return first


def _links(its):
    first = its.then_tell(its.hit(0))
    for number in (2, 3):
        first.link(its.then_tell(its.add(number)))
    return first


def _group(its):
    return group(its.then_tell(its.hit(0)), its.then_tell(its.add(2, 5)))


def _group_after(its):
    return chain(its.hit(0), group(its.then_tell(its.add(2)), its.then_tell(its.add(3))))


def _chord(its):
    return chord([its.hit(1), its.add(2, 2), its.add(3, 3)], its.total())


def _single(its):
    return chord([its.hit(1)], its.total())


def _nested(its):
    return chord([chain(its.add(1, 0), its.hit()), its.add(3, 5)], its.total())


def _chord_after(its):
    return chain(its.hit(0), group(its.add(2), its.add(3)), its.total())


# What each tells in the end, and how many orders it charges.
SHAPES = {
    "chain": (_chain, [3], 3),
    "link": (_link, [2], 2),
    "links": (_links, [1, 2, 2], 3),
    "group": (_group, [1, 6], 2),
    "group_after": (_group_after, [2, 2], 3),
    "chord": (_chord, [9], 4),
    "single": (_single, [2], 2),
    "nested": (_nested, [8], 4),
    "chord_after": (_chord_after, [4], 4),
}
WITH_CHORD = ("chord", "single", "nested")
# The members of its chord beside the one that is hit.
BESIDE = {"chord": (2, 3), "nested": (3,)}
