"""The state of a pipeline as values; `pipelines.commands` prints the values.

In reading order: `status`, from the two halves `server_half` and `lake_half` (each read by a thread of
`half`), `status_json`, `stalled` (tables and documents that have stopped). `check`, with `clustering`,
`numeric_digits`, `document_rules` and `former_values`.
"""
