"""`smelt sql`: statements over the lake, from a script or typed by a person.

In reading order: `shell` (reads a terminal), `warm_spark` (Spark beside the terminal), `session` (runs
statements and meta-commands), `splitting`, `meta_commands`; the output of rows: `results`, `paging`,
`exports`; knowledge of tables: `catalog`, `completion`.
"""
