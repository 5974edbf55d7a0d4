"""One session of the log: from its start to its end.

In reading order:

* `replication` (the stream on libpq), `receiver` (the thread that takes bytes), `session` (decode, write,
  commit, confirm);
* `encodings` (texts that the server could not convert);
* `continuity` and `timeline` (whether it goes on where bronze is);
* `in_order`, `memory`.
"""
