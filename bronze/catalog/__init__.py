"""The source's tables as the catalog describes them.

In reading order: `source_table` (the values), `select` (which tables, and all about them), `queries`,
`types`, `keys`, `publication` (as it is), `comments`, `problems` (why a table cannot be carried).
"""
