"""The reader: composes sessions of the log with copies of tables, and heals what heals.

In reading order:

* `reader` (the life of it), `session_start` and `session_decoder` (how a session begins), `nudge` (an idle
  stream);
* `look` and `carried_tables` (which tables are selected, carried and in need of a snapshot),
  `changed_tables`, `named_partitions`, `unreadable`;
* `copies` (the thread that copies these), `table_errors` (what is recorded of tables), `trouble` (pauses and
  errors of the pipeline), `pauses`;
* `watch` (changes of the catalog), `recovery` (a slot that is lost).
"""
