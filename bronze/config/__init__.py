"""What a user writes: the sections of the pipeline file that every layer reads, and how YAML is read.

In reading order: `sections` (source, snapshot, bronze, lake), `timing` (how long is waited; no key sets it),
`yaml_file` (a file, its lines, its ``${ENV}``).
"""
