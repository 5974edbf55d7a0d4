"""Follow the log for one session, from the session's start to its end.

In reading order:

* `replication` (the stream on libpq), `receiver` (the thread that receives bytes), `session` (decode, write,
  commit, confirm);
* `encodings` (texts that the server could not convert);
* `continuity`, `timeline`, `same_log` and `evidence` (whether the stream continues bronze's log).
"""
