"""Documents drafted from foreign keys. Pure.

In reading order: `foreign_keys` (what hangs on what), `propose` (which documents, and what is in them),
`names`, `draft` (the result as values), `files` (as YAML).
"""
