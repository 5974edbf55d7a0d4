"""Composition of the layers: settings, Spark session, CLI, jobs, status, quality, demo.

In reading order: `cli` (parses, calls), `commands` (one file each), `settings` (the pipeline file), `runtime`
(long-running parts). Then `health`, `monitor`, `quality`, `proof`, `tail`, `spark`, `sql_shell`, `terminal`
(output and errors), `init`, `demo`. Shared: `selected` (names and patterns), `bounds` (of numbers),
`moments`, `private` (folders), `databricks_secrets`, `secret_variables`, `without_pandas`.
"""
