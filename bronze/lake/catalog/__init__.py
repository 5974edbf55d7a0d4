"""Tables of a catalog that only a Spark session reads and writes, behind what `deltalake` offers of others.

In reading order: `place` (a name as a location), `session` (which Spark session knows the catalog), `said`
(marks in what a commit says of itself), `table` (a table's log as SQL tells it), `commits` (appending,
replacing, making), `amend` (rows changed or removed in place).
"""
