"""
A replay of many letters from the pages: looked at, tried with a few, started, and who may do so.
"""

import uuid

from django_celery_safeguards.sql import row_id
from tests.browser.pages import LETTERS, REPLAYS, content, follow, press, told
from tests.browser.replay_jobs import ASKED, START, jobs_of, open_form, path_of, states


def test_a_group_is_looked_at_tried_and_replayed_while_somebody_watches(log_in, desk, letters, announcements):
    """The whole way of an incident's end, without a shell."""
    worker = desk.start_worker(announcements).wait_ready(40)
    page = log_in("ann")

    open_form(page, desk, letters, Canary="3", Per_second="6")
    press(page, "What would happen?")
    looked, untouched = page.locator("#forecast").inner_text(), states(desk, letters)
    press(page, "Start")
    page.evaluate("window.isTheSamePage = true")
    bar = page.locator("#sg-live progress")
    seen = set()
    while "done" not in page.locator("#sg-live").inner_text():
        seen.add(bar.get_attribute("value"))
        if len(seen) == 2:
            assert page.evaluate("window.isTheSamePage") is True
        page.wait_for_timeout(200)
    page.wait_for_function("!window.isTheSamePage")

    (job,) = jobs_of(desk, letters)
    assert "Of 12 letters 12 would be sent." in looked
    assert set(untouched) == {"open"}
    assert len(seen) > 1
    assert (job.status, job.tally.succeeded, job.canary, job.per_second) == ("done", 12, 3, 6.0)
    assert set(states(desk, letters)) == {"closed"}
    assert "Pause…" not in page.content()
    group = letters[0].fingerprint
    logged = f"Replay of 12 letters: open letters of group {group}. Reason: the bank is back."
    assert [(who, text) for who, _, text in desk.log() if group in text] == [("ann", logged)]
    assert worker.stop() == 0


def unknown_payments(desk, *order_ids):
    """Put letters of payments into the store of which nobody knows whether they were made, and one of no known task."""
    error = f"shop.Away{uuid.uuid4().hex[:8]}"
    known = {"task": "desk.pay", "scope": "desk.pay", "effect_possible": True, "burial": 1, "error_type": error}
    letters = [desk.bury(kwargs={"order_id": each}, key=f"pay:{each}", **known) for each in order_ids]
    return [*letters, desk.bury(task="desk.gone", error_type=error)]


def what_would_happen(page, desk, letters, *, asks):
    page.goto(desk.url + START + "?" + "&".join(f"letter={row_id(desk.namespace, each.id)}" for each in letters))
    if asks:
        page.get_by_label("A dry run calls verify and ensure, too").check()
    page.get_by_label("Reason").fill("to look")
    press(page, "What would happen?")
    return page.locator("#forecast").inner_text()


def test_a_dry_run_says_it_of_each_letter_and_asks_the_outside_if_it_is_told_to(log_in, desk):
    order = uuid.uuid4().hex
    letters = unknown_payments(desk, order, f"refused-{order}")
    page = log_in("ann")

    unasked = what_would_happen(page, desk, letters, asks=False)
    asked = what_would_happen(page, desk, letters, asks=True)
    rows = page.locator("#forecast tbody tr").all_inner_texts()

    assert "2: would run, unless verify says that it has happened" in unasked
    assert "1: task not known here: the worker's policy decides" in unasked
    assert "verify:" not in unasked
    assert "1: verify: did not happen" in asked
    assert [letters[number].id in row for number, row in enumerate(rows)] == [True] * 3
    assert "verify: did not happen" in rows[0]
    assert f"verify: cannot tell (builtins.ConnectionError: the bank knows no order refused-{order})" in rows[1]
    assert "the code of task desk.gone is not known to this process" in rows[2]
    assert [letter.state for letter in map(desk.letter, letters)] == ["open"] * 3


def test_what_their_functions_quote_is_payload(log_in, desk):
    """An error of the bank's names the customer."""
    order = uuid.uuid4().hex
    letters = unknown_payments(desk, f"refused-{order}")

    asked = what_would_happen(log_in("noa"), desk, letters, asks=True)

    assert "verify: cannot tell" in asked
    assert "the bank knows" not in asked


def test_canaries_that_fail_again_keep_the_rest_back_and_say_so(log_in, desk, announcements):
    """Nobody had mended anything: three letters tell, and nine are left in peace."""
    error = f"shop.Broken{uuid.uuid4().hex[:8]}"
    letters = [
        desk.bury(task="desk.charge", kwargs={"order_id": f"{error}-{n}", "amount": -1}, error_type=error)
        for n in range(9)
    ]
    worker = desk.start_worker(announcements).wait_ready(40)
    page = log_in("ann")

    open_form(page, desk, letters, Canary="3")
    press(page, "Start")
    page.get_by_text("of 3 canaries 3 failed again").wait_for(timeout=30_000)

    assert jobs_of(desk, letters)[0].status == "stopped"
    assert sum(not desk.letter(letter).history for letter in letters) == 6
    page.get_by_role("button", name="Resume…").wait_for()
    assert worker.stop() == 0


def test_a_form_counts_what_can_be_sent_and_what_cannot_be_read(log_in, desk, letters):
    """ "Of the newest 11": the twelfth was neither older nor sent."""
    desk.overwrite(letters[3], "{no letter")
    page = log_in("ann")

    open_form(page, desk, letters)
    press(page, "What would happen?")
    looked = page.locator("#forecast").inner_text()

    assert "Of 11 letters 11 would be sent." in looked
    assert "1 more cannot be read, and is not sent" in looked


def test_do_nothing_leads_back_to_where_the_letters_were_chosen(log_in, desk, letters):
    """Whoever thinks better of it is in the midst of triage, and not among old replays."""
    page = log_in("ann")

    open_form(page, desk, letters)
    follow(page, page.get_by_role("link", name="Do nothing"))
    from_group = page.url
    page.goto(f"{desk.url}{LETTERS}?kind=bug")
    follow(page, page.get_by_role("link", name="Replay all of these"))
    follow(page, page.get_by_role("link", name="Do nothing"))

    assert from_group == desk.url + desk.path_of_group(letters[0])
    assert page.url == f"{desk.url}{LETTERS}?kind=bug"


def test_a_form_without_letters_has_nothing_to_press(desk, letters):
    """The last one was replayed by somebody else."""
    for letter in letters:
        desk.change(letter, state="closed")
    with desk.client("ann") as client:
        of_group = client.get(START, params={"fingerprint": letters[0].fingerprint}).text
        picked = client.get(START, params={"letter": row_id(desk.namespace, letters[0].id)}).text
        desk.change(letters[0], state="open")
        mixed = client.get(START, params={"letter": [row_id(desk.namespace, each.id) for each in letters]}).text

    assert "There is nothing to send" in of_group
    assert 'value="Start"' not in of_group + picked
    assert "There is nothing to send" in picked
    assert "12 letters, of which 11 are not open and not sent" in mixed


def test_selected_letters_are_replayed_and_no_others(log_in, desk, letters):
    page = log_in("ann")
    page.goto(f"{desk.url}{LETTERS}?fingerprint={letters[0].fingerprint}")
    boxes = page.locator("input.action-select")
    for number in (1, 3):
        boxes.nth(number).check()
    page.locator('select[name="action"]').select_option("replay_selected_at_a_pace")
    follow(page, page.locator("button[name=index]"))  # "Go" up to Django 6.0, then "Run"
    heading = content(page)
    page.get_by_label("Reason").fill("these two")
    press(page, "Start")

    assert "2 open letters" in heading
    (job, *_) = desk.store(lambda wiring: wiring.jobs.list(1)).jobs
    assert (job.total, job.reason, job.fingerprint) == (2, "these two", "")


def test_letters_that_have_gone_since_they_were_selected_are_none_and_not_all(desk, letters):
    before = desk.store(lambda wiring: wiring.jobs.list(1000)).jobs
    with desk.client("ann") as client:
        answer = client.post(START, data={"letter": "0" * 64, **ASKED})

    assert answer.status_code == 200
    assert "there are none" in answer.text
    assert desk.store(lambda wiring: wiring.jobs.list(1000)).jobs == before


def test_a_filtered_list_offers_what_it_shows(log_in, desk, letters):
    """What a replay cannot be narrowed to is not offered: it would send more than the list shows."""
    page = log_in("ann")
    link = page.get_by_role("link", name="Replay all of these")

    page.goto(f"{desk.url}{LETTERS}?task=desk.note&kind=bug&state=open")
    href = link.get_attribute("href")
    offered = []
    for query in ("", "q=x", "state=closed", "failed=day", "task__startswith=d"):
        page.goto(f"{desk.url}{LETTERS}?{query}")
        offered.append(link.count())

    assert href.endswith("start/?task=desk.note&kind=bug")
    assert offered == [1, 0, 0, 0, 0]


def test_two_people_who_start_the_same_group_start_one_job(log_in, desk, letters):
    ann, bob = log_in("ann"), log_in("bob")
    open_form(ann, desk, letters)
    open_form(bob, desk, letters)

    press(ann, "Start")
    press(bob, "Start")

    (job,) = jobs_of(desk, letters)
    assert job.who == "ann"
    assert f"Job {job.id} replays this group already" in told(bob)
    assert path_of(desk, job) in bob.url


def test_whoever_may_not_see_the_letters_does_not_send_them_all(desk, letters):
    """The form says how many there are and what each would become: that is what lists are for."""
    with desk.client("all-but-view_deadletter") as client:
        group = client.get(desk.path_of_group(letters[0]))
        asked = [client.get(START), client.post(START, data=ASKED), client.post(START, data={**ASKED, "look": "1"})]

    assert (group.status_code, [answer.status_code for answer in asked]) == (200, [403] * 3)
    assert "start/" not in group.text
    assert jobs_of(desk, letters) == []


def test_a_start_without_a_reason_or_with_numbers_that_cannot_hold_is_not_made(desk, letters):
    group = {"fingerprint": letters[0].fingerprint}
    with desk.client("ann") as client:
        for wrong in ({"reason": ""}, {"at_once": "0"}, {"canary": "-1"}, {"per_second": "0"}, {"order": "random"}):
            answer = client.post(START, data={**group, **ASKED, **wrong})
            assert (answer.status_code, "errorlist" in answer.text) == (200, True)
        assert client.post(START, data={"kind": "no such kind", **ASKED}).status_code == 404

    assert jobs_of(desk, letters) == []


def test_more_letters_than_a_page_can_take_down_are_left_to_the_command_line(log_in, desk):
    task = f"desk.{uuid.uuid4().hex}"
    letter = desk.bury(task=task)

    def copy(wiring):
        table = wiring.letters._house.tables.letters
        columns = table.list([name for name in table._quoted if name != "id"])
        # Each statement has a time limit.
        for first in range(0, 20_000, 2_000):
            numbers = f"generate_series({first + 1}, {first + 2_000}) number"
            select = f"SELECT md5(number::text || %s), {columns} FROM {table.name}, {numbers} WHERE id = %s"
            insert, values = (
                f"INSERT INTO {table.name} (id, {columns}) {select}",
                [task, row_id(desk.namespace, letter.id)],
            )
            wiring.letters._house.connection.run(lambda cursor, sql=insert, of=values: cursor.execute(sql, of))

    desk.store(copy)
    page = log_in("ann")
    page.goto(f"{desk.url}{START}?task={task}")
    with desk.client("ann") as client:
        answer = client.post(START, data={"task": task, **ASKED})

    assert "More than 20000 letters" in content(page)
    assert page.get_by_role("button", name="Start").count() == 0
    assert "use `safeguards replays start`" in answer.text
    assert desk.letter(letter).state == "open"


def test_texts_of_strangers_are_shown_as_they_are_written(log_in, desk):
    nasty = "<script>alert(1)</script>\u202egnp.exe\x00\ud800"
    letter = desk.bury(task=nasty, error_type=nasty, error_message=nasty, effect_possible=True)
    page = log_in("ann")
    alerts = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))

    open_form(page, desk, [letter])
    press(page, "What would happen?")
    page.get_by_label("Reason").fill(nasty.replace("\ud800", "").replace("\x00", ""))
    press(page, "Start")
    shown = content(page)
    page.goto(desk.url + REPLAYS)

    assert alerts == []
    assert "<script>alert(1)</script>" in shown
    assert "\u202e" not in shown + page.locator("#result_list").inner_text()
