"""Bytes of pgoutput in, Arrow rows of `bronze.changes` out. Pure.

In reading order:

* `framing` (where messages are), `messages` (the rare ones), `transactions` (order and commits);
* `relation_versions` (a Relation message to a shape), `earlier_changes` and `shape_versions` (where in its
  transaction a shape begins);
* `partitions` (which ones the stream names);
* `layouts` and `tuples` (columns of the tuples), `rows` (Arrow);
* `decoder` (all of it, batch by batch).
"""
