"""Draft documents from foreign keys. Pure.

In reading order: `foreign_keys` (dependencies between tables), `propose` (the documents and their content),
`names`, `secrets`, `draft` (the result as values), `files` (the result as YAML).
"""
