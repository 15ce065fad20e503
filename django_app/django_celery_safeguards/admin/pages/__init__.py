"""
What the pages of all rooms share; it knows none of them.

| module | holds |
|---|---|
| `reading` `placed_list` `filters` | lists and pages that only read; lists that are walked by places, and narrowed |
| `asking` `away` | pages that ask before anything is done, all of one make; the one that says that a database is away |
| `rights` `payload` | who may; who sees what work was given |
| `shown` `letter_rows` | whose rows are shown; a letter's row, read |
| `presenting` | values in words, as HTML |
"""
