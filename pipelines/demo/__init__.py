"""The demo: a live shop on an embedded PostgreSQL, carried through every layer."""
