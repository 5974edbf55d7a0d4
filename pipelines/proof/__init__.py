"""`smelt verify` of silver: PostgreSQL's own rows at one LSN, beside silver's at the same one.

In reading order: `against_source` (the argument, and the order of things), `source_copy` (the source's side),
`scratch` (where that lies meanwhile), `load` and `sample` (how much of it).
"""
