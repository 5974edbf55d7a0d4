"""Compare a document with a full rebuild, and with PostgreSQL's own answer.

In reading order: `verify` (gold table and rebuild), `against_source` (gold's compiler and the server).
"""
