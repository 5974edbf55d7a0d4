"""Fold raw records into row state, by Spark SQL.

In reading order: `cycle` (all tables to bronze's frontier, then a cut), `plan` (a window to steps), `fold`
(changes to rows, as SQL). Then `schema` (the tables), `spark` (the access to Spark), `run` (steps on Spark),
`fresh` (tables read ahead of the next cycle), `rebuild` (a table derived again from bronze), `verify`
(comparison with the source), `errors`, `settings`, `sql` (quoting).
"""
