"""Delta tables in a folder, an object store or a catalog; only a catalog's tables need Spark.

In reading order:

* `place` and `location` (where a lake lies, names of tables and folders), `stores` (URL schemes and options);
* `client` and `stand_ins` (classes of `deltalake`, or substitutes where `deltalake` is absent);
* `table` (every question to a table), `delta` (open and create), `cached_table` (handles of polled tables),
  `parquet` (data files);
* `log_table`, `folder_table` and `store_table` (tables in folders and stores), `transactions` (marks in the
  log), `foreign_commits` (commits of other writers), `compaction`;
* `objects` (small objects, conditional writes), `lease_objects` and `leases` (permission to write), `entries`
  and `tail` (direct commits and log following in a store);
* `catalog` (tables of a catalog), `staging` (local folders for their rows);
* `copies` (separate lakes for one comparison), `erasures` (what was erased), `traces` (search of all files),
  `notes` (small texts for other processes);
* `durability` and `torn_log` (power cuts), `failures` and `spark_errors` (errors of storage and of Spark);
* `control_table`, `control` and `control_tables` (records that the layers exchange), `thinning` (retention of
  these records);
* `consistent_cut` (the LSN at which a reader sees silver and gold together).
"""
