"""Silver's tables: their columns, types and statements.

In reading order: `catalog` (a table as its shape gives it), `types` and `containers` (PostgreSQL's types in
Spark), `unrepresentable`, `fields` (columns as Delta keeps them). Statements: `ddl` (CREATE), `alter`,
`clustering`, `widening` (what Delta alters in place), `comments`. Then `recreated`, `live_rows`.
"""
