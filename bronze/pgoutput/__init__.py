"""Decode bytes of pgoutput into Arrow rows of `bronze.changes`, without I/O of its own.

In reading order:

* `framing` (where messages begin), `messages` (rare messages), `transactions` (order and commits);
* `relation_versions` (from a Relation message to a shape version), `earlier_changes` (where in its
  transaction a shape begins);
* `partitions` (partitions that the stream names);
* `layouts` and `tuples` (columns of the tuples), `rows` (Arrow);
* `decoder` (the whole, batch by batch).
"""
