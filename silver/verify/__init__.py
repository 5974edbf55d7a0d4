"""Check whether a silver table holds the rows of the source, value by value, at one LSN.

In reading order: `rows` (the queries), `compare` (the order in which silver runs the queries).
"""
