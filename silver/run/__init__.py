"""Runs steps on Spark, and says whose failure a failure is.

In reading order: `table_log` (what silver's tables say of themselves), `bronze_window` (bronze at a version),
`worklist` (what a cycle has to do), `aside` (for callers that only read). Statements: `step_runner`,
`step_source`, `key_ranges` (which files a MERGE skips), `writer` (all that commits). Failures:
`failed_tables` (a table that stops).
"""
