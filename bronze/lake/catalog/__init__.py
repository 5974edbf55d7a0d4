"""Tables of a catalog that only a Spark session reads and writes, as `bronze.lake.table.Table`.

In reading order: `session` (which sessions run on this machine), `sql` (statements, errors, ownership of
names), `commit_marks` (marks in a commit's metadata), `table` (a table's log through SQL), `commits` (create,
append, replace), `amend` (change or remove rows in place), `files` (commit of staged files), `scratch`
(temporary tables), `lease_rows` (conditional writes of small texts).
"""
