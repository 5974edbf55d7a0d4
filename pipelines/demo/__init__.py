"""The demo: a live shop on an embedded PostgreSQL, carried through every layer.

In reading order: `demo` (the command), `embedded_postgres` and `embedded_copy` (the server), `workload` (the
shop), `show` and `live` (the view), `story` (changes that the demo follows), `summary`.
"""
