"""Row state to documents. Spark SQL.

In reading order: `documents` (the language), `tree` (a document resolved against silver's catalog),
`compile` (its query), `affected` (which roots changes touch), `build` (one document's table), `cycle` (all
of them).
"""
