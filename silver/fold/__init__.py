"""Reduce a window of changes to one row per key, in Spark SQL as text. Pure.

In reading order: `window` (the changes), `by_key` and `by_content` (how the fold identifies rows), `toast`
(values that PostgreSQL did not send), `moved_rows` (changed keys). Then `fold` (the statement), `merge` (the
write into the table), `row_versions` (history and soft deletes).
"""
