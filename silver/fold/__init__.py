"""Reduce a window of changes to one row per key, in Spark SQL as text. Pure.

In reading order: `window` (the changes), `column_mapping` (columns of a shape to columns of the table),
`by_key` and `by_content` (how the fold identifies rows), `toast` (values that PostgreSQL did not send),
`moved_rows` (changed keys). Then `fold` (the query), `upsert` (INSERT and MERGE), `write_sql` (the statement
of a step), `row_versions` (history and soft deletes).
"""
