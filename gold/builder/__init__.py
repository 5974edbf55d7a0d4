"""One document's table, built in full or brought up to date.

In reading order: `build_start` (is a build needed, and from which cut), `document`, `build` (values that all
builds use), `full`, `images`, `incremental`, `merging` (into the table), `gold_table`. Memory: `memory`,
`sizing`, `weights`, `widths`, `growth`. Then `lost_values`, `spark_settings`, `failures`.
"""
