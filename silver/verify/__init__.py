"""Whether a silver table holds the rows that the source has, value by value, at one LSN.

In reading order: `rows` (the queries), `compare` (the order in which they are asked).
"""
