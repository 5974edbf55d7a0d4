"""The user's configuration: the sections of the pipeline file that every layer reads, and the YAML reader.

In reading order: `sections` (source, snapshot, bronze, lake), `timing` (waits, which no key sets),
`yaml_file` (a file, its lines, its ``${ENV}``), `validation`, `problems`, `suggestions`.
"""
