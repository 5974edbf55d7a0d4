"""`smelt sql`: statements over the lake, one after the other, or typed by a person.

In reading order: `command` (what is asked), `shell` (reads a terminal), `warm_spark` and `statements` (Spark
beside the terminal), `session` (runs statements and meta-commands). Then what they are made of: `splitting`,
`meta_commands`, `results`, `layout`, `paging`, `catalog`, `completion`, `history`.
"""
