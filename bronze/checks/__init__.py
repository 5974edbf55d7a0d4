"""Only looks: what is wrong with a source, as findings of `smelt check`.

In reading order: `finding`, `inspect` (all of them), `server`, `tables`, `publication`, `wal_budget`,
`slot_risk`, `failover`; `lake_store` (an object store, tried out).
"""
