"""
What can be read: in both themes, on a desk and on a phone.
"""

import uuid

import pytest

from celery_safeguards.locks.store import LockAsk
from celery_safeguards.replay.many.choosing import Choice, make_job, named
from django_celery_safeguards.rows import lock_id
from django_celery_safeguards.sql import row_id
from tests.browser.pages import GROUPS, LETTERS, LOCKS, RECORDS, REPLAYS, open_letter, press

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
BACKGROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 18, 18)"}
LEAST_CONTRAST = 4.5
_COLOURS = """element => {
    const clear = colour => colour === 'transparent' || /rgba\\(.*, 0\\)$/.test(colour);
    let behind = element;
    while (behind && clear(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
    return [getComputedStyle(element).color, behind ? getComputedStyle(behind).backgroundColor : 'rgb(255, 255, 255)'];
}"""
_LINES = """element => {
    const range = document.createRange();
    range.selectNodeContents(element);
    return range.getClientRects().length;
}"""
_KEY_TEXTS = {
    "letter": (
        ".sg-state",
        ".sg-box",
        ".sg-pairs th",
        ".sg-pairs td",
        ".sg-lines li",
        ".sg-quiet",
        ".sg-buttons input",
    ),
    "deed": (".sg-mark", ".sg-lines li", ".sg-quiet", ".submit-row input", "label", ".help"),
    "groups": (".sg-state", ".sg-quiet", "#result_list a", "#result_list td"),
    "group": (".sg-state", ".sg-box", ".sg-pairs th", ".sg-pairs td", ".object-tools a"),
    "triage": ("label", ".help", ".submit-row input"),
    "export": ("label", ".help", ".submit-row input", ".submit-row a"),
    "edit": (".sg-json", ".help", "label", ".submit-row input", "#ahead li", "#ahead p", ".sg-history td"),
    "list": (".sg-state", ".sg-quiet", "#result_list a", "#result_list td", ".sg-pages span", ".sg-jump label"),
    "lock": (".sg-pairs th", ".sg-pairs td", ".sg-lines li", "label", ".help", ".submit-row input"),
    "job": (".sg-state", ".sg-pairs th", ".sg-pairs td", ".sg-buttons input"),
}


def contrast(page, selector):
    """Return the least contrast of what a selector finds, as WCAG 2.2 defines it."""
    found = page.locator(selector)
    assert found.count(), selector
    return min(_contrast(*found.nth(each).evaluate(_COLOURS)) for each in range(min(found.count(), 20)))


def _contrast(first, second):
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour):
    channels = [int(each) / 255 for each in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_contrast_is_measured_and_not_assumed():
    """A measure that says "fine" of everything would pass any colours."""
    assert round(_contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)"), 1) == 21.0
    assert round(_contrast("rgb(119, 119, 119)", "rgb(255, 255, 255)"), 2) == 4.48


@pytest.mark.parametrize("theme", BACKGROUNDS)
def test_key_texts_can_be_read_in_both_themes(log_in, desk, theme):
    """Grey on black, at three in the morning."""
    letter = desk.bury_unknown(f"theme-{theme}")
    desk.store(lambda wiring: wiring.letters.add_note(letter.id, "looked at", "ann"))
    page = log_in("ann", color_scheme=theme)
    measured = {}

    page.goto(f"{desk.url}{LETTERS}?q={letter.id}")
    measured |= {("list", each): contrast(page, each) for each in _KEY_TEXTS["list"]}
    background = page.locator("body").evaluate(_COLOURS)[1]
    groups = {"groups": f"{GROUPS}?q={letter.fingerprint}", "group": desk.path_of_group(letter)}
    forms = {"triage": desk.path_of_group(letter, "triage"), "export": f"{LETTERS}export/?task={letter.task}"}
    for where, path in {**groups, **forms}.items():
        page.goto(desk.url + path)
        measured |= {(where, each): contrast(page, each) for each in _KEY_TEXTS[where]}
    _check_an_edit(page, desk, desk.bury(task="desk.mail", effect_possible=True))
    measured |= {("edit", each): contrast(page, each) for each in _KEY_TEXTS["edit"]}
    open_letter(page, desk, letter)
    measured |= {("letter", each): contrast(page, each) for each in _KEY_TEXTS["letter"]}
    page.get_by_role("button", name="It happened…").click()
    page.get_by_label("Reason").wait_for()
    measured |= {("deed", each): contrast(page, each) for each in _KEY_TEXTS["deed"]}

    job = desk.store(lambda _: make_job(desk.app, named([letter.id]), "ann"))
    page.goto(f"{desk.url}{REPLAYS}{row_id(desk.namespace, job.id)}/change/")
    measured |= {("job", each): contrast(page, each) for each in _KEY_TEXTS["job"]}

    _ask_for_a_release(page, desk, f"theme-{theme}")
    measured |= {("lock", each): contrast(page, each) for each in _KEY_TEXTS["lock"]}

    assert background == BACKGROUNDS[theme]
    assert {} == {what: ratio for what, ratio in measured.items() if ratio < LEAST_CONTRAST}


def _check_an_edit(page, desk, letter):
    open_letter(page, desk, letter)
    press(page, "Edit as new…")
    page.get_by_label("Keyword arguments").fill("{}")
    page.get_by_label("Not before").fill("2099-01-01T00:00+00:00")
    page.get_by_label("Reason").fill("why")
    press(page, "Check")
    page.get_by_role("button", name="Send the copy").wait_for()


def _take(desk, name):
    """Have somebody hold a lock who says of himself what is as long as its name."""
    holder = {"task": name, "task_id": name, "worker": name, "host": name, "pid": 1}
    ask = LockAsk(name=name, owner="somebody", lease_seconds=300, holder=holder)
    desk.store(lambda wiring: wiring.locks.acquire(ask))


def _ask_for_a_release(page, desk, name):
    _take(desk, name)
    page.goto(f"{desk.url}{LOCKS}{lock_id(desk.namespace, name)}/change/")
    press(page, "Release…")
    page.get_by_label("Reason").wait_for()


@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_pages_are_no_wider_than_the_screen(log_in, desk, viewport):
    """Whoever is called out of bed has a phone; a line that leaves the screen hides the button beside it."""
    wide = "w" * 400
    letter = desk.bury(task=f"desk.{wide}", key=wide, scope=wide, kwargs={"a": wide}, error_message=wide, reason=wide)
    desk.store(lambda wiring: wiring.letters.add_note(letter.id, wide, wide, wide))
    _take(desk, wide)
    page = log_in("ann", viewport=viewport)

    widths = {}
    desk.store(lambda wiring: wiring.letters.annotate_group(letter.fingerprint, wide, wide))
    desk.store(lambda wiring: wiring.letters.assign_group(letter.fingerprint, wide, wide))
    groups = (GROUPS, desk.path_of_group(letter), desk.path_of_group(letter, "triage"))
    start = f"{REPLAYS}start/?fingerprint={letter.fingerprint}"
    job = desk.store(lambda _: make_job(desk.app, Choice(task=letter.task), wide, reason=wide))
    replays = (REPLAYS, start, f"{REPLAYS}{row_id(desk.namespace, job.id)}/change/")
    export = f"{LETTERS}export/?task={letter.task}"
    for path in (LETTERS, RECORDS, LOCKS, desk.path_of(letter), export, *groups, *replays):
        page.goto(desk.url + path)
        widths[path] = page.evaluate("document.documentElement.scrollWidth")
    open_letter(page, desk, letter)
    page.get_by_role("button", name="Replay…").click()
    page.get_by_role("heading", name="Send this work again?").wait_for()
    widths["deed"] = page.evaluate("document.documentElement.scrollWidth")
    _check_an_edit(page, desk, desk.bury(kwargs={"a": wide, wide: 1}, headers={"group": wide}, key=wide, scope=wide))
    widths["edit"] = page.evaluate("document.documentElement.scrollWidth")
    _ask_for_a_release(page, desk, wide)
    widths["lock"] = page.evaluate("document.documentElement.scrollWidth")

    assert {} == {path: width for path, width in widths.items() if width > viewport["width"]}


def test_names_and_buttons_can_be_read_on_a_phone(log_in, desk):
    """ "ord / er:4 / 2" is no name, and a button of half a word's width is hit by nobody."""
    _take(desk, "order:42")
    letter = desk.bury()
    job = desk.store(lambda _: make_job(desk.app, named([letter.id]), "ann"))
    page = log_in("ann", viewport={"width": 375, "height": 812})

    page.goto(f"{desk.url}{LOCKS}?q=order:42")
    lines = page.locator("#result_list th a").evaluate("link => link.getClientRects().length")
    page.goto(f"{desk.url}{REPLAYS}{row_id(desk.namespace, job.id)}/change/")
    widths = page.locator(".sg-buttons input[type=submit]").evaluate_all("all => all.map(each => each.offsetWidth)")

    assert lines == 1
    assert len(widths) == 3
    assert min(widths) > 300


def test_rows_of_lists_are_no_towers_on_a_phone(log_in, desk):
    """A time with each of its words on a line of its own makes a row of a third of the screen, and three of a page."""
    letter = desk.bury(error_type=f"shop.Tower{uuid.uuid4().hex}")
    desk.claim("desk.charge", "payment:tower")
    desk.store(lambda _: make_job(desk.app, named([letter.id]), "ann"))
    page = log_in("ann", viewport=PHONE)
    measure = "all => all.map(each => each.getBoundingClientRect().height)"

    heights = {}
    for path in (f"{RECORDS}?q=payment:tower", f"{REPLAYS}?q=ann", f"{GROUPS}?q={letter.fingerprint}"):
        page.goto(desk.url + path)
        heights[path] = max(page.locator("#result_list tbody tr").evaluate_all(measure))
    page.goto(f"{desk.url}{RECORDS}?q=payment:tower")
    lines = page.locator("td.field-scope_short").evaluate(_LINES)

    assert {} == {path: height for path, height in heights.items() if height > 110}
    assert lines == 1


def test_lists_show_all_their_columns_on_a_desk(log_in, desk):
    """A column that is only there for who scrolls sideways within a table is not there at three in the morning."""
    letter = desk.bury(error_type=f"shop.Wide{uuid.uuid4().hex}", error_message="a long " * 40)
    desk.claim("desk.charge", f"payment:{uuid.uuid4().hex}")
    _take(desk, f"order:{uuid.uuid4().hex}")
    desk.store(lambda _: make_job(desk.app, named([letter.id]), "ann"))
    page = log_in("ann", viewport=DESK)

    hidden = {}
    for path in (LETTERS, GROUPS, REPLAYS, RECORDS, LOCKS):
        page.goto(desk.url + path)
        table = page.locator("#result_list")
        hidden[path] = table.evaluate("table => table.scrollWidth - table.parentElement.clientWidth")

    assert {} == {path: pixels for path, pixels in hidden.items() if pixels > 0}


def test_what_cannot_be_edited_has_its_names_on_a_phone(log_in, desk):
    """Three values below each other, without the heads of their columns, do not say which of them is the copy's."""
    letter = desk.bury()
    page = log_in("ann", viewport=PHONE)
    page.goto(desk.url + desk.path_of(letter).replace("/change/", "/edit/"))
    before = "all => all.slice(0, 3).map(each => getComputedStyle(each, '::before').content)"

    assert page.locator(".sg-history td").evaluate_all(before) == [
        '"what: "',
        '"in this letter: "',
        '"in the copy: "',
    ]


def test_what_the_keyboard_comes_to_is_not_below_the_buttons(log_in, desk):
    """They stay in sight at the bottom of a long page; a traceback that is scrolled by keys stood half behind them."""
    letter = desk.bury(traceback="\n".join(f"line {number}" for number in range(200)), kwargs={"a": "w" * 2_000})
    page = log_in("ann", viewport={"width": 1280, "height": 700})
    open_letter(page, desk, letter)
    boxes = page.locator(".sg-box")
    page.locator(".field-playbook a").focus()
    hidden, names = [], []
    for _ in range(boxes.count()):
        page.keyboard.press("Tab")
        name, bottom = page.evaluate(
            "[document.activeElement.ariaLabel, document.activeElement.getBoundingClientRect().bottom]"
        )
        names.append(name)
        if bottom > page.locator(".sg-buttons").bounding_box()["y"]:
            hidden.append(name)

    assert "traceback" in names
    assert hidden == []


def test_title_of_a_form_that_was_refused_says_so(log_in, desk):
    """It is what a screen reader says first of the page that comes back."""
    page = log_in("ann")
    open_letter(page, desk, desk.bury())
    press(page, "Discard…")
    asked = page.title()
    press(page, "Discard")

    assert page.title() == f"Error: {asked}"
    assert page.get_by_label("Reason").get_attribute("aria-describedby") == "id_reason_helptext id_reason_error"


def test_pages_work_without_scripts(log_in, desk):
    """A policy that forbids scripts, or a text browser, must not keep anybody from a replay."""
    letter = desk.bury()
    page = log_in("ann", java_script_enabled=False)

    open_letter(page, desk, letter)
    for name in ("Replay…", "Replay"):
        with page.expect_navigation():
            page.get_by_role("button", name=name, exact=True).click()

    _check_an_edit(page, desk, desk.bury())
    press(page, "Send the copy")

    assert (desk.letter(letter).state, desk.queued()) == ("replayed", 2)
