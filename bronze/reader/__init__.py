"""Compose sessions of the log with copies of tables, and recover from faults.

In reading order:

* `reader` (the main loop), `session_start` and `session_decoder` (the start of a session);
* `catalog_poll` and `carried_tables` (tables that are selected, carried and in need of a snapshot),
  `polled_rules`, `changed_tables`, `quiet_shapes`, `named_partitions`, `marks_beyond`;
* `copies` (the thread that copies these tables), `table_errors` (recorded errors of tables),
  `pipeline_errors` (pauses and errors of the pipeline);
* `watch` (changes of the catalog), `recovery` (a lost slot).
"""
