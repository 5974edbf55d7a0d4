"""Changes that PostgreSQL makes without an event in the log, and how the reader detects the changes.

In reading order: `storage` (rewrites and columns), `observed_storage` (from one catalog poll to the next,
with the stream behind both), `streamed` and `streamed_queries` (partitions that the stream names),
`membership` (the publication's way to carry a table), `joining` (a table whose changes an older server may
forget).
"""
