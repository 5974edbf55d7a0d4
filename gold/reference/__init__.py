"""Compute a document with PostgreSQL itself: the reference for gold's own query.

`conditions` translates filters, `comparable` omits fields without a translation, `query` writes the server's
SQL, `reading` converts the server's texts to gold's values, `values` orders and compares these values. Pure,
and independent of `gold.compile`: the reference does not repeat a fault of gold's compiler.
"""
