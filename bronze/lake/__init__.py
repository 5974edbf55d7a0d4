"""Delta tables on a folder or an object store, without Spark.

In reading order:

* `location` (where a lake lies), `folders` (a table's name as a folder's), `scratch` (tables for a while),
  `spark_text` (names and texts in SQL);
* `client` and `stand_ins` (values of `deltalake`, which a lake in a catalog needs not);
* `delta` (open, commit, retry), `history` and `transactions` (what commits say), `parquet` (files that a
  commit names), `compaction`, `retention`;
* `stores` (schemes and options of object stores), `objects` (small ones, put on condition), `leases` and
  `lease_objects` (who may write there), `entries` and `tail` (a log's entries put and followed there);
* `named` (tables of a catalog);
* `disk` and `torn_log` (what a power cut leaves), `failures` (storage that cannot be read or written);
* `control` and `control_tables` (what the layers tell each other), `thinning` and `pruning` (what of it is
  kept);
* `consistent_cut` (as of when tables are read together).
"""
