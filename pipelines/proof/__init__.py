"""`smelt verify` of silver: compare PostgreSQL's rows with silver's rows at the same LSN.

In reading order: `against_source` (the argument, and the order of steps), `source_copy` (the source's
rows), `load` (load limits and samples), `documents`, `sides`.
"""
