"""The contents of bronze, and all code that writes bronze.

In reading order:

* `contract` (schemas, properties, format), `marks`, `position` (progress of the stream), `ownership`;
* `gaps` (tables that lack changes, and requests for new snapshots), `rule_marks` (changed rules), `retention`
  (the end of old changes), `erasure` (the end of one subject's records);
* `relations` (shapes), `text_lists`; results of catalog polls: `catalog_log`, `comments`; partitions that the
  stream named: `streamed_log`;
* for a process that only looks: `arrivals` (what arrives in the changes), `in_order` (rows of files);
  `row_groups` of files, also for `retention`;
* `changes_table` (the handle that threads share), `table_marks` (the marks of each table), `sink` (the
  writer), `landing` (the objects through which a session writes).
"""
