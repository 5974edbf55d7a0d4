"""A window of changes to one row per key: Spark SQL as text. Pure.

In reading order: `window` (which changes), `by_key` and `by_content` (how rows are identified), `toast`
(values that were not sent), `moved_rows` (keys that changed). Then `fold` (the statement), `merge` (into the
table), `row_versions` (history and soft deletes).
"""
