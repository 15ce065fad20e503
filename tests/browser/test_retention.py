"""
How long a letter is kept, on its page.
"""

import time

from tests.browser.pages import content, open_letter

DAY = 86_400.0


def test_page_of_a_letter_says_how_long_it_is_kept(log_in, desk):
    """Whoever wants to look at it once more next month must know whether it will be there."""
    waiting, over, past = (desk.bury(task="desk.kept") for _ in range(3))
    now = time.time()
    desk.store(lambda wiring: wiring.letters.close(over.id, "it succeeded", now - 79.49 * DAY))
    desk.store(lambda wiring: wiring.letters.discard(past.id, "dora", "a test order", now - 91 * DAY))
    desk.store(lambda wiring: wiring.letters.archive([past.id], "archie", "noise", now))
    page = log_in("lena")

    said = []
    for letter in (waiting, over, past):
        open_letter(page, desk, letter)
        said.append(content(page))

    assert "for ever: it is open" in said[0]
    assert "for another 10 d 12 h, until 20" in said[1]
    assert "until the next purge: its time was over at 20" in said[2]
