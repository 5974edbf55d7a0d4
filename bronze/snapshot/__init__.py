"""Tables as they are at one LSN, read in parallel under one exported snapshot.

In reading order: `snapshot` (the argument, and a round of it), `locks`, `chunks` (ranges of a table),
`workers`, `copy_out` and `copy_text` (what COPY sends), `rows` (of `bronze.changes`).
"""
