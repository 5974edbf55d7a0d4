"""Read the document file: keys, checks, JSON Schema.

In reading order: `model` (the keys), `notation` (names, orderings, targets), `document` (a file), `types` and
`comparing` (what a Spark type allows, and how PostgreSQL compares), `pairs` (equality of two columns),
`json_schema`.
"""
