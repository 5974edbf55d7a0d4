"""Raw records to row state, by Spark SQL.

In reading order: `cycle` (all tables to bronze's frontier, then a cut), `plan` (a window to steps), `fold`
(changes to rows, as SQL). Then `schema` (the tables), `run` (on Spark), `fresh` (tables read ahead of the
next cycle), `rebuild` (one table again from bronze), `errors`.
"""
