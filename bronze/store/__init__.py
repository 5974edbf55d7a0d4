"""What bronze holds, and every way it is written.

In reading order:

* `contract` (schemas, properties), `marks`, `position` (how far bronze is), `lake_format`;
* `commits` (marks and rows in one commit), `gaps` and `resnapshot` (tables that lack changes);
* `relations` (shapes), `text_lists`; what looks at the catalog saw: `catalog_log`, `storage_log`, `comments`;
  what the stream named: `streamed_log`;
* `changes_table` (the handle that threads share), `table_marks` (what is said of each table), `sink` (the
  writer), `landing` (what a session writes through), `leftovers`.
"""
