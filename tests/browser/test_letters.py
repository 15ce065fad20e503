"""
Dead letters at three in the morning: found, understood, and brought to an end.
"""

from tests.browser.pages import content, find, follow


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
