"""
Every request that the admin answers, complete and valid, with who may send it and what it does.

    tries_of(desk, ann)["deed replay"]()  →  a `Try` whose letter waits to be replayed

Each has a letter, a group or a job of its own, so that one who may sends what nobody has used up. `ann`, who may do
everything, is asked for what only a page knows.
"""

import time
import uuid
from dataclasses import dataclass, field
from functools import partial

from celery_safeguards.admission.store import RecordKey
from celery_safeguards.deadletter.history import HistoryEntry
from celery_safeguards.jobs.steps import declared, taken
from celery_safeguards.ledger.record import State
from celery_safeguards.locks.store import LockAsk
from celery_safeguards.replay.many.choosing import make_job, named
from django_celery_safeguards.rows import lock_id
from django_celery_safeguards.sql import row_id
from tests.browser.pages import GROUPS, LETTERS, LOCKS, RECORDS, REPLAYS
from tests.browser.test_editing import check
from tests.browser.test_erasing import ERASE, looked
from tests.browser.test_groups import SAID
from tests.browser.test_lock_release import asked
from tests.conformance.admission.calls import change, claimed

CANARY = "the-canary"
"""Stands in all that is payload, and nowhere else."""
SEES = {
    "deadletter": "view_deadletter",
    "lettergroup": "view_lettergroup",
    "replayjob": "view_replayjob",
    "idempotencyrecord": "view_idempotencyrecord",
    "leaselock": "view_leaselock",
}
NOBODY = "nobody may"
ANY_STAFF = "any member of the staff"
ANY_VIEWER = "anybody who may view one of the models"
_LETTERS = {"view_deadletter"}
DEEDS = {
    "replay": ("Send this work again?", {"replay_deadletter"}),
    "resume": ("Send this replay again?", {"replay_deadletter"}),
    "happened": ("Has this work happened?", {"resolve_deadletter"}),
    "did-not-happen": ("Has this work not happened?", {"resolve_deadletter"}),
    "discard": ("Give this work up?", {"discard_deadletter"}),
    "archive": ("Put this work away?", {"archive_deadletter"}),
    "restore": ("Bring this work back?", {"archive_deadletter"}),
}
_STARTS = {"replay_deadletter", "view_replayjob"}
ACTIONS = {
    ("deadletter", "replay_selected"): DEEDS["replay"],
    ("deadletter", "replay_selected_at_a_pace"): ("Send these letters again?", _STARTS),
    ("deadletter", "export_selected"): ("Export these letters?", {"export_deadletter"}),
    ("deadletter", "archive_selected"): DEEDS["archive"],
    ("deadletter", "restore_selected"): DEEDS["restore"],
    ("deadletter", "discard_selected"): DEEDS["discard"],
    **{(model, "delete_selected"): ("Are you sure?", {NOBODY}) for model in SEES},
}
VERBS = ("pause", "resume", "run", "cancel")
_CONFIRMED = {"confirmed": "1", "reason": "by hand", "result": "1", "may_run_twice": "on"}
_ASKED = {"canary": "0", "at_once": "100", "order": "first_seen", "reason": "by hand", "may_run_twice": "on"}


@dataclass(frozen=True, kw_only=True)
class Try:
    """
    One request.

    Attributes:
        address: as `offered` names it.
        needs: all of these permissions.
        acts: whether something is another afterwards.
        answer: the status for whoever may.
        shows: what is on the page for whoever may, and for nobody else, where the status is the same.
        quotes: whether the page has payload, for those who may see it.
        is_of_django: whether it is one of the pages that Django makes for every model.

    """

    address: str
    path: str
    needs: frozenset[str]
    data: dict = field(default_factory=dict)
    method: str = "POST"
    acts: bool = False
    answer: int = 200
    shows: str = ""
    quotes: bool = False
    is_of_django: bool = False

    def is_for(self, codenames, *, is_staff=True):
        """Whether somebody with these permissions may."""
        if ANY_VIEWER in self.needs:
            return is_staff and not set(codenames).isdisjoint(SEES.values())
        return is_staff and (ANY_STAFF in self.needs or self.needs <= set(codenames))

    def sent(self, client):
        """Send it."""
        if self.method == "GET":
            return client.get(self.path)
        return client.post(self.path, data=self.data)

    def is_refused(self, answer):
        """Whether an answer is that of somebody who may not."""
        if answer.status_code == 302 and "/login/" in answer.headers["Location"]:
            return True
        return answer.status_code in {403, 404} or (bool(self.shows) and self.shows not in answer.text)


def tries_of(desk, ann):
    """Return what makes each request, by name."""
    of_models = {f"{page} {model}": partial(_page, desk, model, page) for model in SEES for page in _PAGES}
    deeds = {f"deed {deed}": partial(_deed, desk, deed) for deed in DEEDS}
    asked = {f"deed {deed}, asked": partial(_deed, desk, deed, is_asked=True) for deed in DEEDS}
    verbs = {f"verb {verb}": partial(_verb, desk, verb) for verb in VERBS}
    verbs_asked = {f"verb {verb}, asked": partial(_verb, desk, verb, is_asked=True) for verb in VERBS}
    actions = {f"action {action} {model}": partial(_action, desk, model, action) for model, action in ACTIONS}
    on_pages = {
        f"action {action} on a page of {model}": partial(_page_action, desk, model, action) for model, action in ACTIONS
    }
    return {
        **of_models,
        **deeds,
        **asked,
        **verbs,
        **verbs_asked,
        **actions,
        **on_pages,
        "index": partial(_index, desk),
        "triage form": partial(_triage, desk, "GET"),
        "triage": partial(_triage, desk, "POST"),
        "start form": partial(_start, desk, ""),
        "start look": partial(_start, desk, "look"),
        "start": partial(_start, desk, "confirmed"),
        "export form": partial(_export, desk, ""),
        "export asked": partial(_export, desk, "asked"),
        "export": partial(_export, desk, "confirmed"),
        "erase form": partial(_erase, desk, ann, ""),
        "erase look": partial(_erase, desk, ann, "look"),
        "erase": partial(_erase, desk, ann, "confirmed"),
        "release asked": partial(_release, desk, ann, is_asked=True),
        "release": partial(_release, desk, ann),
        "edit form": partial(_edit, desk, ann, ""),
        "edit check": partial(_edit, desk, ann, "check"),
        "edit": partial(_edit, desk, ann, "send"),
    }


def quoting_letter(desk, **changes):
    """Put a payment into the store that quotes what it was given wherever it can; nobody knows whether it happened."""
    order = f"order-{uuid.uuid4().hex[:8]}"
    return desk.bury_unknown(
        order,
        args=[CANARY],
        headers={"x-note": CANARY, "argsrepr": f"({CANARY!r},)"},
        reason=f"refused: {CANARY}",
        error_type=f"shop.Error{order[-8:]}",
        error_message=f"cannot charge {CANARY}",
        traceback=f"Traceback\nValueError: {CANARY}",
        history=(HistoryEntry(at_seconds=1.0, what="died again", who=None, detail=f"said {CANARY}"),),
        **changes,
    )


def _page(desk, model, page):
    """Return a request of one of the pages that Django makes for every model."""
    method, address, answer = _PAGES[page]
    row, where = _row(desk, model) if page != "list" else ("", _WHERE[model])
    path = where if page == "list" else f"{where}add/" if page in {"add", "add form"} else f"{where}{row}/{address}"
    is_read = page in {"list", "page", "log"}
    needs = {ANY_STAFF} if page == "no page" else {SEES[model] if is_read else NOBODY}
    return Try(
        address=f"{model}/<path:object_id>/" if page == "no page" else f"{model}_{_NAMES[page]}",
        path=path,
        needs=frozenset(needs),
        method=method,
        data={"post": "yes", "state": "closed", "status": "done", "name": "x", "owner": "", "_save": "Save"},
        answer=answer,
        quotes=(model, page) in _QUOTING,
        is_of_django=True,
    )


_WHERE = {"deadletter": LETTERS, "lettergroup": GROUPS, "replayjob": REPLAYS, "idempotencyrecord": RECORDS}
_WHERE["leaselock"] = LOCKS
_PAGES = {
    "list": ("GET", "", 200),
    "page": ("GET", "change/", 200),
    "log": ("GET", "history/", 200),
    "no page": ("GET", "", 302),
    "add form": ("GET", "", 200),
    "add": ("POST", "", 302),
    "change": ("POST", "change/", 302),
    "delete form": ("GET", "delete/", 200),
    "delete": ("POST", "delete/", 302),
}
_NAMES = {"list": "changelist", "page": "change", "log": "history", "add form": "add", "delete form": "delete"}
_NAMES |= {name: name for name in ("add", "change", "delete")}
_QUOTING = {(model, page) for model in ("deadletter", "lettergroup") for page in ("list", "page")}
_QUOTING.add(("idempotencyrecord", "page"))


def _row(desk, model):
    """Return the id of a row of a model, and where the model's pages are."""
    where = _WHERE[model]
    if model == "leaselock":
        name = uuid.uuid4().hex
        desk.store(lambda wiring: wiring.locks.acquire(LockAsk(name=name, owner="somebody", lease_seconds=300)))
        return lock_id(desk.namespace, name), where
    letter = quoting_letter(desk)
    if model == "deadletter":
        return row_id(desk.namespace, letter.id), where
    if model == "lettergroup":
        return row_id(desk.namespace, letter.fingerprint), where
    if model == "replayjob":
        return row_id(desk.namespace, _job(desk, letter).id), where
    desk.store(lambda wiring: _failed(wiring, letter))
    return row_id(desk.namespace, letter.scope, letter.key), where


def _failed(wiring, letter):
    key = RecordKey(letter.scope, letter.key)
    record = claimed(wiring.admission, "owner-1", key)
    failed = change(State.RETRY_DUE, failure={"kind": "bug", "error": f"cannot charge {CANARY}"})
    wiring.admission.settle(key, record, State.IN_PROGRESS, failed)


def _index(desk):
    return Try(
        address="app_list",
        path="django_celery_safeguards/",
        needs=frozenset({ANY_VIEWER}),
        method="GET",
    )


def _for_deed(desk, deed):
    """Return a letter that a deed can be done to."""
    if deed in {"happened", "did-not-happen"}:
        return quoting_letter(desk)
    letter = desk.bury(error_type=f"shop.Error{uuid.uuid4().hex[:8]}")
    if deed == "resume":
        desk.change(letter, state="replaying", replay_task_id="allocated")
    if deed == "restore":
        desk.change(letter, state="archived", archived_from="open")
    return letter


def _deed(desk, deed, *, is_asked=False):
    picked = desk.picked(quoting_letter(desk) if is_asked else _for_deed(desk, deed))
    title, needs = DEEDS[deed]
    return Try(
        address="deadletter_deed",
        path=f"{LETTERS}do/{deed}/",
        data={"letter": picked, "asked": picked, **({} if is_asked else _CONFIRMED)},
        needs=frozenset(_LETTERS | needs),
        acts=not is_asked,
        answer=200 if is_asked else 302,
        shows=title if is_asked else "",
    )


def _action(desk, model, action):
    title, needs = ACTIONS[model, action]
    row, where = _row(desk, model)
    return Try(
        address=f"{model}_changelist",
        path=where,
        data={"action": action, "_selected_action": row, "select_across": "0", "post": "yes", **_CONFIRMED},
        needs=frozenset({SEES[model], *needs}),
        shows=title,
    )


def _page_action(desk, model, action):
    """Return a request for an action where it is not offered, as Django sends those of a row's own page from 6.1 on."""
    row, where = _row(desk, model)
    return Try(
        address=f"{model}_change",
        path=f"{where}{row}/change/",
        data={"CHANGE_FORM-action": action, "_selected_action": row, "post": "yes", **_CONFIRMED},
        needs=frozenset({NOBODY}),
        is_of_django=True,
    )


def _triage(desk, method):
    letter = quoting_letter(desk)
    return Try(
        address="lettergroup_triage",
        path=desk.path_of_group(letter, "triage"),
        method=method,
        data={**SAID, "failures_seen": desk.group(letter).failures},
        needs=frozenset({"view_lettergroup", "triage_lettergroup"}),
        acts=method == "POST",
        answer=302 if method == "POST" else 200,
    )


def _start(desk, button):
    letter = quoting_letter(desk)
    return Try(
        address="replayjob_start",
        path=f"{REPLAYS}start/",
        method="POST" if button else "GET",
        data={"fingerprint": letter.fingerprint, **_ASKED, button: "1"},
        needs=frozenset({*_LETTERS, *_STARTS}),
        acts=button == "confirmed",
        answer=302 if button == "confirmed" else 200,
    )


def _verb(desk, verb, *, is_asked=False):
    job = _job(desk, quoting_letter(desk))
    if verb == "resume":
        desk.store(lambda wiring: wiring.jobs.change(job.id, declared("paused", "bob", time.time())))
    if verb in {"pause", "cancel"}:
        desk.store(lambda wiring: wiring.jobs.change(job.id, taken("runner", time.time(), 300)))
    return Try(
        address="replayjob_verb",
        path=f"{REPLAYS}{row_id(desk.namespace, job.id)}/do/{verb}/",
        data={} if is_asked else {"confirmed": "1"},
        needs=frozenset(_STARTS),
        acts=not is_asked,
        answer=200 if is_asked else 302,
    )


def _job(desk, letter):
    return desk.store(lambda _: make_job(desk.app, named([letter.id]), "bob", reason="by hand"))


def _edit(desk, ann, button):
    letter = desk.bury(kwargs={"note": CANARY}, error_type=f"shop.Error{uuid.uuid4().hex[:8]}")
    mended = {"kwargs": f'{{"note": "{CANARY}, mended"}}'}
    data = check(ann, desk, letter, **mended)[1] if button else {}
    data.pop("send", None)
    return Try(
        address="deadletter_edit",
        path=desk.path_of(letter).replace("/change/", "/edit/"),
        method="POST" if button else "GET",
        data={**data, button: "1"},
        needs=frozenset({*_LETTERS, "edit_deadletter", "view_payload_deadletter"}),
        acts=button == "send",
        answer=302 if button == "send" else 200,
        quotes=button != "send",
    )


def _export(desk, button):
    row = row_id(desk.namespace, quoting_letter(desk).id)
    data = {"letter": row, "form": "json", "with_payload": "on", "reason": "by hand"}
    return Try(
        address="deadletter_export",
        path=f"{LETTERS}export/",
        method="POST" if button else "GET",
        data={**data, button: "1"},
        needs=frozenset({*_LETTERS, "export_deadletter"}),
        # What goes out is written into the log.
        acts=button == "confirmed",
    )


def _erase(desk, ann, button):
    letter = quoting_letter(desk)
    data = looked(ann, letter_ids=letter.id)[1] if button else {}
    data.pop("confirmed", None)
    return Try(
        address="deadletter_erase",
        path=ERASE,
        method="POST" if button else "GET",
        data={**data, "reason": "by hand", button: "1"},
        needs=frozenset({*_LETTERS, "erase_deadletter"}),
        acts=button == "confirmed",
    )


def _release(desk, ann, *, is_asked=False):
    row, where = _row(desk, "leaselock")
    confirmed = {"confirmed": "1", "override": "on", "reason": "by hand"}
    return Try(
        address="leaselock_release",
        path=f"{where}{row}/release/",
        data={} if is_asked else {**confirmed, "seen": asked(ann, f"{where}{row}/release/")[1]},
        needs=frozenset({"view_leaselock", "release_leaselock"}),
        acts=not is_asked,
        answer=200 if is_asked else 302,
        shows="Release this lock?" if is_asked else "",
    )
