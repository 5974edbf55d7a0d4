"""Tables of a catalog that only a Spark session reads and writes, behind the interface of `deltalake`.

In reading order: `session` (which sessions run on this machine), `sql` (statements, errors, ownership of
names), `commit_marks` (marks in a commit's metadata), `table` (a table's log through SQL), `commits` (create,
append, replace), `amend` (change or remove rows in place), `staging` (local folders for rows), `lease_rows`
(conditional writes of small texts).
"""
