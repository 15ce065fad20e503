"""
A letter's arguments in an edit: what is hidden is in no mark, and goes out as it was, wherever it stands by then.
"""

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from celery import Celery
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.utils.json import dumps

from celery_safeguards import Safeguards, SafeTask
from celery_safeguards.deadletter.shown.masking import FAILED, MASK
from celery_safeguards.replay.copies.edit import Edit, EditRefused, as_text, changed_fields, opened, require_no_marks
from celery_safeguards.replay.copies.masked import masked, without_values
from celery_safeguards.wiring import Wiring
from tests.unit.test_replay_edit import TYPED, letter, typed

CANARY = "hunter2'é"


@pytest.fixture(scope="module")
def shop():
    with Celery("shop", set_as_current=False) as app:
        app.conf.update(safeguards_store_url="memory://", safeguards_sensitive_arguments=("customer.email",))

        @app.task(shared=False, base=SafeTask, name="shop.note", safeguards=Safeguards(repeatable=True))
        def note(user=None, password=None, *rest, **values):
            return user, password, rest, values

        yield app


@pytest.fixture
def redacting(shop):
    """Have the project's own function asked, in this test."""
    before = Wiring.of(shop)

    def use(function):
        replace(before, settings=replace(before.settings, redact=function)).use_for(shop)

    yield use
    before.use_for(shop)


def look(shop, *args, **kwargs):
    """Return a letter's message, opened, and as a person may edit it."""
    sent = letter(list(args), kwargs, {})
    found = opened(sent)
    return sent, found, masked(shop, sent, found)


def through_a_form(found, edit):
    """Return an edit as it comes back from a form that shows it."""
    return Edit(args=found.args_of(as_text(list(edit.args))), kwargs=found.kwargs_of(as_text(edit.kwargs)))


def written(edit):
    return as_text([list(edit.args), edit.kwargs])


@pytest.mark.parametrize(
    "call",
    [
        {"args": ["ann", CANARY]},
        {"kwargs": {"user": "ann", "password": {"old": [CANARY], "at": 7}}},
        {"kwargs": {"customer": {"email": CANARY, "id": 7}, "lines": [{"api_key": CANARY}, {"api_key": 7}]}},
        {"args": ["ann", CANARY, 1], "kwargs": {"note": f"call {CANARY} now", **TYPED}},
        {"kwargs": {"password": 17, "token": Decimal("10.10"), "secret": [1, [2]], "x": float("nan")}},
        {"kwargs": {"password": CANARY, "totals": {CANARY: 7}}},
        {"kwargs": {"password": 4711, "note": "[redacted 0]", "more": "[redacted]"}},
    ],
)
def test_what_is_hidden_is_not_in_the_form_and_goes_out_as_it_was(shop, call):
    """A person who mends an amount must neither read the password nor break it."""
    _, found, seen = look(shop, *call.get("args", ()), **call.get("kwargs", {}))

    back = seen.restored(through_a_form(found, seen.edit))

    assert "hunter2" not in written(seen.edit)
    assert seen.hidden
    assert written(back) == written(found.edit)
    assert typed([list(back.args), back.kwargs]) == typed([list(found.edit.args), found.edit.kwargs])
    require_no_marks(found.edit, back)


def test_without_the_mask_the_form_would_show_it(shop):
    _, found, _ = look(shop, "ann", CANARY)

    assert "hunter2" in written(found.edit)


def test_what_is_shown_beside_it_stands_in_the_mark(shop):
    """Of a comment that repeats the password, the rest may be read."""
    _, _, seen = look(shop, password=CANARY, note=f"call {CANARY} now", other=1)

    assert seen.edit.kwargs == {"password": "[redacted 0]", "note": "[redacted 1: call [redacted] now]", "other": 1}


def test_marks_stay_the_same_when_more_or_less_is_hidden(shop, redacting):
    """Between the form and its answer a setting may be deployed: a mark must not turn into another value's."""
    call = {"a": [1, {"b": 2}], "password": CANARY}
    _, _, before = look(shop, **call)
    redacting(lambda context, value: "***" if context.name == "a" else value)
    sent, _, after = look(shop, **call)

    assert (before.edit.kwargs["password"], after.edit.kwargs) == (
        "[redacted 4]",
        {"a": "[redacted 0: ***]", "password": "[redacted 4]"},
    )
    assert after.restored(after.edit).kwargs == opened(sent).edit.kwargs


# --- what a person does around it

_NAMES = st.sampled_from(["a", "b", "password", "api_key", "card"])
_HERE = st.recursive(
    st.integers() | st.text(max_size=5) | st.none() | st.decimals(allow_nan=False, places=2),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=25,
)


def changed_around(shown, true, draw):
    """Return both with the same entries taken away, repeated and put in another order; what is shown leads."""
    if isinstance(shown, dict) and isinstance(true, dict):
        kept = draw(st.permutations(sorted(shown)))[: draw(st.integers(0, len(shown)))] if shown else []
        both = {key: changed_around(shown[key], true[key], draw) for key in kept}
        return {key: each[0] for key, each in both.items()}, {key: each[1] for key, each in both.items()}
    if isinstance(shown, list) and isinstance(true, list):
        places = draw(st.lists(st.integers(0, len(shown) - 1), max_size=5)) if shown else []
        both = [changed_around(shown[at], true[at], draw) for at in places]
        return [each[0] for each in both], [each[1] for each in both]
    return shown, true


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["lines", "customer", "password"]), _HERE), st.data())
def test_values_come_back_wherever_entries_around_them_were_moved_taken_away_or_added(shop, kwargs, data):
    """Nobody can count on a place that is told by its index: the third card may be the first by now."""
    _, found, seen = look(shop, **kwargs)

    shown, true = changed_around(seen.edit.kwargs, found.edit.kwargs, data.draw)

    try:
        back = seen.restored(through_a_form(found, Edit(kwargs=shown)))
    except EditRefused as error:
        # A text that repeats a secret which was taken away would be shown in the copy.
        assert "would not be hidden any more" in str(error)  # noqa: PT017
    else:
        assert typed(back.kwargs) == typed(true)
        require_no_marks(found.edit, back)


@settings(deadline=None)
@given(st.dictionaries(_NAMES, _HERE, max_size=4))
def test_whatever_stands_under_a_secret_name_is_in_no_form(shop, kwargs):
    _, _, seen = look(shop, password={"x": kwargs, "canary": CANARY}, more=kwargs)

    assert "hunter2" not in written(seen.edit)
    assert list(seen.edit.kwargs) == ["password", "more"]
    assert seen.edit.kwargs["password"] == "[redacted 0]"


def test_new_values_and_entries_stand_beside_what_is_hidden(shop):
    _, found, seen = look(shop, "ann", CANARY, lines=[{"api_key": "k-one"}, {"api_key": "k-two"}])
    first, second = seen.edit.kwargs["lines"]

    back = seen.restored(
        Edit(args=["bob", "a new one"], kwargs={"lines": [{"api_key": "k-new", "n": 1}, second, {**first, "n": 2}]})
    )

    assert back.args == ["bob", "a new one"]
    assert back.kwargs["lines"] == [{"api_key": "k-new", "n": 1}, {"api_key": "k-two"}, {"api_key": "k-one", "n": 2}]
    assert changed_fields(found.edit, back) == ("args[0]", "args[1]", "kwargs.lines")


def test_value_goes_with_its_name_from_a_place_to_a_keyword(shop):
    _, _, seen = look(shop, "ann", CANARY)

    back = seen.restored(Edit(args=["ann"], kwargs={"password": seen.edit.args[1]}))

    assert back.kwargs == {"password": CANARY}


@pytest.mark.parametrize(
    "edit",
    [
        lambda mark: Edit(args=["ann", "x"], kwargs={"comment": mark}),
        lambda mark: Edit(args=[mark]),
        lambda mark: Edit(args=["ann", "x"], kwargs={"password": {"deeper": mark}}),
        lambda mark: Edit(args=["ann", "x", mark]),
    ],
)
def test_value_cannot_be_moved_to_where_it_would_be_shown(shop, edit):
    """The copy dies, its letter shows its arguments, and the password is on the screen."""
    _, _, seen = look(shop, "ann", CANARY)

    with pytest.raises(EditRefused, match="stands for a hidden value of password") as refused:
        seen.restored(edit(seen.edit.args[1]))

    assert "hunter2" not in str(refused.value)


def test_text_that_repeats_a_secret_is_refused_when_the_secret_is_replaced(shop):
    """With the password goes what hid it in the comment."""
    _, _, seen = look(shop, password=CANARY, note=f"it is {CANARY}")

    with pytest.raises(EditRefused, match="write a new value for note") as refused:
        seen.restored(replace(seen.edit, kwargs={**seen.edit.kwargs, "password": "another"}))

    assert "hunter2" not in str(refused.value)


def test_function_that_looks_at_other_values_is_asked_of_the_copy(shop, redacting):
    """Whoever could switch its condition off could read all."""

    def redact(context, value):
        return {**value, "name": "***"} if context.name == "person" and value["is_private"] else value

    redacting(redact)
    _, found, seen = look(shop, person={"name": CANARY, "is_private": True})
    assert seen.edit.kwargs == {"person": {"name": "[redacted 1: ***]", "is_private": True}}
    assert seen.restored(seen.edit).kwargs == found.edit.kwargs

    with pytest.raises(EditRefused, match="would not be hidden"):
        seen.restored(Edit(kwargs={"person": {**seen.edit.kwargs["person"], "is_private": False}}))


@pytest.mark.parametrize(
    "edit",
    [
        Edit(kwargs={"password": MASK}),
        Edit(kwargs={"password": "[redacted 0"}),
        Edit(kwargs={"password": "x[redacted 0]"}),
        Edit(kwargs={"password": "[redacted 1]"}),
        Edit(kwargs={"password": FAILED}),
        Edit(kwargs={"password": b"[redacted 0]"}),
        Edit(kwargs={"[redacted 0]": 1}),
        Edit(args=[{"a": [MASK]}]),
    ],
)
def test_mark_that_is_none_of_the_forms_is_not_sent(shop, edit):
    """A worker that logs in with "[redacted]" locks the account."""
    _, found, seen = look(shop, password=CANARY)

    with pytest.raises(EditRefused, match="stands for a hidden value, and is not sent"):
        require_no_marks(found.edit, seen.restored(edit))


@pytest.mark.parametrize("redact", [lambda *_: 1 / 0, lambda *_: 7, lambda *_: {"a": 1}, lambda *_: object()])
def test_function_that_fails_or_answers_with_something_else_hides_all_and_breaks_nothing(shop, redacting, redact):
    redacting(redact)
    _, found, seen = look(shop, CANARY, "p", 3, customer={"name": [CANARY]}, note=CANARY)

    assert "hunter2" not in written(seen.edit)
    assert written(seen.restored(through_a_form(found, seen.edit))) == written(found.edit)


def test_letter_that_cannot_be_redacted_is_edited_with_everything_hidden(shop, monkeypatch):
    monkeypatch.setattr("celery_safeguards.deadletter.shown.masking.Look.wire", lambda *_: 1 / 0)
    _, found, seen = look(shop, CANARY, note={"a": CANARY})

    assert seen.edit == Edit(args=["[redacted 0]"], kwargs={"note": "[redacted 1]"})
    assert seen.restored(seen.edit).kwargs == found.edit.kwargs


def test_letter_of_an_unknown_task_hides_what_has_no_name(shop):
    sent = letter([CANARY, 1], {}, {})
    sent = replace(sent, task="shop.gone")

    seen = masked(shop, sent, opened(sent))

    assert seen.edit.args == ["[redacted 0]", "[redacted 1]"]
    assert seen.restored(seen.edit).args == [CANARY, 1]


def test_error_of_an_edit_quotes_neither_the_letter_nor_the_edit(shop):
    sent, _, _ = look(shop, password=CANARY)
    edit = Edit(kwargs={"password": "a-new-one"})

    said = without_values(shop, sent, edit, f"cannot write {CANARY!r}, nor a-new-one")

    assert "hunter2" not in said
    assert said.endswith(f"nor {MASK}")


def test_ten_thousand_entries_are_hidden_and_restored(shop):
    many = {f"n{number}": {"token": f"secret-{number}"} for number in range(10_000)}
    sent = letter([], {"many": many}, {})
    found = opened(sent)

    seen = masked(shop, sent, found)
    back = seen.restored(seen.edit)

    assert json.loads(str(dumps(back.kwargs))) == {"many": many}
    assert "secret-" not in written(seen.edit)
