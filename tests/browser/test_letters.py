"""
Dead letters at three in the morning: found, understood, and brought to an end.
"""

from celery_safeguards.attempts import FailedAttempt
from tests.browser.pages import content, find, follow, open_letter


def test_letter_is_found_by_its_key_and_read(log_in, desk):
    """An alert names a key; whoever is woken must see at once what failed, with what, and what a replay would do."""
    letter = desk.bury(
        task="desk.charge", key="payment:found", scope="desk.charge", kwargs={"order_id": "found", "amount": 990}
    )
    desk.bury(key="payment:other", scope="desk.charge")
    page = log_in("ann")

    rows = find(page, desk, "payment:found")
    found, row = rows.count(), rows.first.inner_text()
    follow(page, rows.first.get_by_role("link"))
    text = content(page)

    assert found == 1
    assert all(said in row for said in ("open", "bug", "desk.charge", "payment:found", "attempt 4 of 4"))
    assert all(said in text for said in ("payment:found, of desk.charge", "an outside effect is not possible"))
    assert "{'order_id': 'found', 'amount': 990}" in text
    assert "ValueError: no such order" in text
    assert letter.id in text
    assert f"goes to queue {desk.namespace} under a new task id" in text


def test_letter_tells_each_failed_attempt(log_in, desk):
    """The last error is what the retries ended with; the cause is often the first, and on which host it was."""
    given = {"error_type": "shop.errors.Away", "message": "<b>no route</b> password=hunter2", "worker": "web-1:4711"}
    letter = desk.bury(
        attempt_history=(
            FailedAttempt(number=1, at_seconds=1_750_000_000.0, ended="retried in 2 s", task_id="t-0", **given),
            FailedAttempt(number=1, at_seconds=1_750_000_060.0, ended="buried: no policy", task_id="t-1", release="v4"),
        )
    )
    alone = desk.bury()
    page = log_in("ann")

    open_letter(page, desk, letter)
    head = page.locator(".field-attempt_history th").all_inner_texts()
    rows = [row.locator("td").all_inner_texts() for row in page.locator(".field-attempt_history tbody tr").all()]
    open_letter(page, desk, alone)
    none = page.locator(".field-attempt_history").inner_text()
    page = log_in("lena")
    open_letter(page, desk, letter)
    guarded = page.locator(".field-attempt_history").inner_text()

    assert ["attempt", "when", "how it ended", "error", "worker, release", "as task"] == [each.lower() for each in head]
    assert ["1", "2025-06-15 15:06:40 UTC", "retried in 2 s", "Away: <b>no route</b> password=[redacted]"] == rows[0][
        :4
    ]
    assert ["web-1:4711", "t-0"] == [each.strip() for each in rows[0][4:]]
    assert ["buried: no policy", "-", "-\nv4", "t-1"] == [each.strip() for each in rows[1][2:]]
    assert "not known: it never began" in none
    assert "Away" in guarded
    assert "no route" not in guarded
    assert "no policy" not in guarded
