"""A document as PostgreSQL itself computes it: the reference for gold's own query.

`conditions` translates filters, `comparable` leaves out fields without a translation, `query` writes the
server's SQL, `reading` turns the server's texts into gold's values. Pure, and independent of `gold.compile`:
a fault of gold's compiler is not repeated here.
"""
