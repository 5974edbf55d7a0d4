"""Row state to documents, by Spark SQL.

In reading order: `language` (the document file), `expressions` (the SQL in it), `tree` (a document resolved
against silver's catalog), `compile` (its query), `incremental` (which roots changes affect). Then `builder`
(one document's table), `cycle` (all of them). Beside these: `preview`, `explain`, `verify`, `drafting`.
"""
