"""Turn rows into documents, by Spark SQL.

In reading order: `language` (the document file), `expressions` (SQL in a document file), `tree` (a document
resolved against silver's catalog), `compile` (the document's query), `incremental` (the roots that changes
affect). Then `builder` (a document's table), `cycle` (all documents), `settings`. Commands use `preview`,
`explain`, `verify`, `reference` and `drafting`.
"""
