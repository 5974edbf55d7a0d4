"""Runs steps on Spark, and tells whose failure a failure is.

In reading order: `table_log` (what silver's tables say of themselves), `bronze_window` (bronze at a version),
`sessions` and `pinned` (under which settings), `step_runner`, `refusals` and `troubles` (a table that stops),
`outages`, `pauses`.
"""
