"""
Replay jobs: the list, the page of one, and how one is begun, paused and ended.

| module | holds |
|---|---|
| `listing` `page` | the list; the page of one, which is live |
| `starting` `start_form` `forecast` | the page that begins a replay of many letters, its form, and what would happen |
| `deciding` `verbs` | pause, resume, run and cancel: the page that asks, and what each of them means |
| `rows` | a job's row, read |
"""
