"""A document's tree to one query. Pure.

In reading order: `compiler`, `elements` (arrays and maps), `clauses`, `recursion`, `column_types`.
"""
