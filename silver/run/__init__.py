"""Runs steps on Spark, and says whose failure a failure is.

In reading order: `table_log` (what silver's tables say of themselves), `bronze_window` (bronze at a version),
`small_reads` (small tables right from their files), `worklist` (what a cycle has to do), `aside` (for who
only looks). Sessions: `sessions`, `keep_alive`, `masters`, `pinned` and `spark_settings`. Statements:
`step_runner`, `step_source`, `key_ranges` (which files a MERGE skips), `descriptions` (comments). Failures:
`refusals` and `troubles` (a table that stops), `outages`, `pauses`.
"""
