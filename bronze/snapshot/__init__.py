"""Copy tables as of an LSN, in parallel under an exported snapshot.

In reading order: `snapshot` (the argument, and a round), `locks`, `chunks` (ranges of a table), `workers`,
`ranges` (read a range), `copy_out` (run and parse COPY), `rows` (of `bronze.changes`), `table_copy` (progress
and outcome). For executors: `executor_pool` (provide executors), `remote_copy`, `executors` (the check
beforehand), `executor_errors` (requirements), `range_task`.
"""
