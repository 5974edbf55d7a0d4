"""WAL to raw records: PostgreSQL and Arrow only, no Spark.

In reading order: `lsn`, `identifiers`, `shapes` and `comments` (values), `errors`, `effects` (every call with
an effect), `backoff` (pauses), `figures` (numbers as text), `progress` (counters), `memory` (allocators),
`builtin_types` and `retypes` (types of columns), `rules` (columns and rows that must not arrive). Then the
rooms: `config`, `postgres`, `catalog`, `drift`, `setup`, `checks`, `pgoutput`, `lake`, `store`, `stream`,
`snapshot`, `reader`.
"""
