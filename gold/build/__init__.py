"""One document's table, built in full or brought up to date.

In reading order: `document` (the build), `views` (silver at a cut), `merging` (into its table), `memory`,
`sizing`, `weights` and `widths` (how much fits), `kept`, `spark_settings`, `failures`.
"""
