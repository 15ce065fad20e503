"""
Dead letters at three in the morning: found, understood, and brought to an end.
"""

from celery_safeguards.outcome import FailureKind


def find(page, desk, term):
    """Search the list of letters."""
    page.goto(f"{desk.url}django_celery_safeguards/deadletter/")
    page.locator("#searchbar").fill(term)
    page.get_by_role("button", name="Search").click()


def test_letter_is_found_by_its_key_and_read(log_in, desk):
    """An alert names a key; whoever is woken must see at once what failed, with what, and what a replay would do."""
    letter = desk.bury(
        task="desk.charge", key="payment:found", scope="desk.charge", kwargs={"order_id": "found", "amount": 990}
    )
    desk.bury(key="payment:other", scope="desk.charge")
    page = log_in("ann")

    find(page, desk, "payment:found")
    rows = page.locator("#result_list tbody tr")
    assert rows.count() == 1
    row = rows.first.inner_text()
    rows.first.get_by_role("link").first.click()
    text = page.locator("#content-main").inner_text()

    assert all(said in row for said in ("open", "bug", "desk.charge", "payment:found", "attempt 4 of 4"))
    assert all(said in text for said in ("payment:found, of desk.charge", "an outside effect is not possible"))
    assert "{'order_id': 'found', 'amount': 990}" in text
    assert "ValueError: no such order" in text
    assert letter.id in text
    assert f"goes to queue {desk.namespace} under a new task id" in text
