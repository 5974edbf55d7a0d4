"""Compile a document's tree to one query. Pure.

In reading order: `compiler`, `clauses` (common pieces, elements of arrays and maps, aggregates, empty
tables), `recursion`, `query` (the result), `flags`, `counting`, `column_types`.
"""
