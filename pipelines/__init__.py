"""Composition of the layers: settings, Spark session, CLI, jobs, status, quality, demo.

In reading order: `cli` (parses, calls), `commands` (one file each), `settings` (the pipeline file), `runtime`
(long-running parts). Then `health`, `quality`, `spark`, `terminal` (output and errors), `init`, `demo`.
"""
