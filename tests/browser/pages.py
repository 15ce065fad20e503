"""
What a person does on the pages of the admin.
"""

LETTERS = "django_celery_safeguards/deadletter/"
GROUPS = "django_celery_safeguards/lettergroup/"
REPLAYS = "django_celery_safeguards/replayjob/"
RECORDS = "django_celery_safeguards/idempotencyrecord/"
LOCKS = "django_celery_safeguards/leaselock/"


def press(page, name):
    """Press a button, and wait for the page that it leads to."""
    with page.expect_navigation():
        page.get_by_role("button", name=name, exact=True).click()


def follow(page, link):
    """Follow a link."""
    with page.expect_navigation():
        link.click()


def find(page, desk, term, where=LETTERS):
    """Search a list, and return what it shows."""
    page.goto(desk.url + where)
    page.locator("#searchbar").fill(term)
    press(page, "Search")
    return page.locator("#result_list tbody tr")


def open_letter(page, desk, letter):
    """Go to a letter's page."""
    page.goto(desk.url + desk.path_of(letter))


def content(page):
    """Return the text of a page without its frame."""
    return page.locator("#content-main").inner_text()


def told(page):
    """Return what the page says was done."""
    return page.locator(".messagelist").inner_text()
