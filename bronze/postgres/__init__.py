"""The server: how to reach it, what it may answer, and its errors as data.

In reading order:

* `dsn` and `conninfo` (where it is), `connection` (an ordinary session), `replication` (commands on a
  walsender);
* `error_rules` and `error_translation` (what its errors mean);
* `liveness`, `blockers` and `lock_holders` (who holds what up);
* `conversion` and `unnamed` (encodings), `partition_tree`, `services`.
"""
