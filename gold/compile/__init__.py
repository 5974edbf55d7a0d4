"""A document's tree to one query. Pure.

In reading order: `compiler`, `elements` (arrays and maps), `aggregates`, `recursion`, `flags`, `counting`,
`clauses`, `empty`, `column_types`.
"""
