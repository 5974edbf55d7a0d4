"""Describe silver's tables: their columns, types and statements.

In reading order: `catalog` (a table as given by its shape), `types` and `containers` (PostgreSQL's types in
Spark), `unrepresentable`, `fields` (columns in Delta's form). Statements: `ddl` (CREATE, features, adoption),
`alter`, `clustering`, `comments`. Then `padding`, `deleted_keys`, `decimals`, `live_rows`.
"""
