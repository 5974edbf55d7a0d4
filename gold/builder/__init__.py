"""One document's table, built in full or brought up to date.

In reading order: `definition` (what decides its content), `standing` (whether it must be built), `document`,
`build` (what both work with), `full`, `incremental`,
`merging` (into its table), `gold_table`, `views` (silver at a cut), `kept`; how much fits: `memory`,
`sizing`, `weights`, `widths`; then `spark_settings`, `failures`.
"""
