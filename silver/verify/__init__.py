"""Check whether a silver table holds the rows of the source, value by value, at one LSN.

In reading order: `rows` (the queries), `source_rows` (the source's rows in silver's form), `compare` (the
order in which silver runs the queries).
"""
