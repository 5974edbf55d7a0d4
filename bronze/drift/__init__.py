"""Changes that PostgreSQL makes without an event in the log, and how the reader detects the changes.

In reading order: `storage` (rewrites and columns), `observed_storage` (from a catalog poll to the next),
`streamed` and `streamed_queries` (partitions that the stream names), `membership` (of a table in the
publication), `joining` (changes that an older server may forget).
"""
