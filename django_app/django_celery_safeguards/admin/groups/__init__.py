"""
Groups of dead letters: the list, the page of one, and what people say of it.

| module | holds |
|---|---|
| `listing` `page` | the list; the page of one |
| `triage` | what people say of a group, and the form for it |
| `rows` `sparkline` | a group's row, read; its failures by hour as a chart |
"""
