"""`smelt sql`: statements over the lake, one after the other, or typed by a person.

In reading order: `shell` (reads a terminal), `warm_spark` (Spark beside the terminal), `session` (runs
statements and meta-commands), `splitting`, `meta_commands`. Then what rows become: `results`, `row_format`,
`layout`, `paging`, `exports`. Then what is known of tables: `catalog`, `describing`, `completion`; `history`.
"""
