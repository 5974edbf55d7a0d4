"""Tables as they are at one LSN, read in parallel under one exported snapshot.

In reading order: `snapshot` (the argument, and a round of it), `locks`, `chunks` (ranges of a table),
`workers`, `ranges` (one of them read), `copy_out` and `copy_text` (what COPY sends), `rows` (of
`bronze.changes`). Where other processes help: `help`, `elsewhere`, `executors` (tried beforehand),
`fitness` (what they need), `range_task`.
"""
