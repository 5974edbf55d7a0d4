"""The access to Spark: sessions, their settings, and what their errors mean.

In reading order: `access` (what depends on the kind of a session), `connect` (sessions at a server),
`lazy_session` (a session that starts when it is needed), `semantics` (settings that decide what values mean),
`tuning` (settings that make statements fast), `errors` (what a failure means), `small_reads` (small tables
right from their files).
"""
