"""The access to Spark: sessions, their settings, and what their errors mean.

In reading order: `access` (sessions of our own beside another one), `lazy_session` (one that starts when it
is needed), `session_kind` (where tasks run), `semantics` (settings that decide what values mean), `tuning`
(settings that make statements fast), `errors` (what a failure says), `small_reads` (small tables right from
their files).
"""
