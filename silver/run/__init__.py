"""Run steps on Spark, and decide whether a failure belongs to one table.

In reading order: `table_log` (what the logs of silver's tables state), `bronze_window` (bronze at a version),
`worklist` (a cycle's work), `position` and `stored` (where a table stands), `read_only` (parts for callers
that only read). Statements: `step_runner`, `step_source`, `key_ranges` (which files a MERGE skips), `writer`
(every commit), `empty_tables` (CREATE TABLE without a statement), `marks`, `commit_counts`, `unsigned`
(commits of an earlier version). Failures: `failed_tables`. `long_work`: large windows that outlive a cycle.
`erasure`: the end of erased rows.
"""
