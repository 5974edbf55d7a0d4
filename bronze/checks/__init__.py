"""Read-only checks: problems of a source, as findings of `smelt check`.

In reading order: `finding`, `inspect` (all checks), `server`, `tables`, `inheritance`, `publication`,
`wal_budget`, `slot_risk`, `failover`; `lake_store` (a trial of an object store), `ownership` (the gate of all
commands), `recorded_rules` (tables together with the lake's record of their rules).
"""
