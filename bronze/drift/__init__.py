"""What PostgreSQL changes without an event in the log, and how it is noticed.

In reading order: `storage` (rewrites and columns), `looks` (from one to the next, with the stream behind
them), `storage_queries`, `streamed` and `streamed_queries` (partitions that the stream names), `fingerprint`
(has the catalog changed at all), `membership` (how the publication carried a table), `joining` (a table that
an older server may forget).
"""
