"""Copy tables as they are at one LSN, in parallel under one exported snapshot.

In reading order: `snapshot` (the argument, and one round), `locks`, `chunks` (ranges of a table), `workers`,
`ranges` (read one range), `copy_out` (run COPY and parse its output), `rows` (of `bronze.changes`),
`table_copy` (progress and outcome). For executors: `help`, `elsewhere`, `executors` (the check beforehand),
`fitness` (requirements), `range_task`.
"""
