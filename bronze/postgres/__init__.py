"""The server: its address, ordinary and replication sessions, and its errors as data.

In reading order:

* `dsn` and `conninfo` (the address), `connection` (an ordinary session), `replication` (commands on a
  walsender), `heartbeat` (messages in the log);
* `error_rules` and `error_translation` (the meaning of errors);
* `liveness`, `blockers` and `lock_holders` (sessions that delay other sessions);
* `conversion` and `unnamed` (encodings), `partition_tree`, `services`.
"""
