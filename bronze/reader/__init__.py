"""The reader: composes sessions of the log with copies of tables, and heals what heals.

In reading order: `reader` (the life of it), `copies` (which tables are carried and copied), `copy_trouble`,
`watch` (changes of the catalog), `recovery` (a slot that is lost).
"""
