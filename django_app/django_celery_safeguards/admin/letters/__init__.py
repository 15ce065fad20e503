"""
Dead letters: the list, the page of one, and what people do to them.

| module | holds |
|---|---|
| `listing` `page` | the list, and how a letter is found; the page of one |
| `prospects` | replay, resume, discard, resolve, archive: who may, and what would happen |
| `acting` `forms` | the page that asks, what a person adds, and what became of it |
| `deeds` | what is done, without a request |
| `editing` `edit_form` | an edited copy: its page, its form |
| `erasing` `erase_form` | one person's data, erased: its page, its form |
| `exporting` | letters as a file |
"""
