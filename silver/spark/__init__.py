"""The access to Spark: sessions, settings, and the meaning of errors.

In reading order: `access` (methods that depend on the kind of a session), `connect` (sessions at a server),
`lazy_session` (a session that starts on demand), `semantics` (settings that decide the meaning of values),
`tuning` (settings that make statements fast), `failure_scope` (whose failure an error is), `small_reads`
(small tables read directly from files).
"""
