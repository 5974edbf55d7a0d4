"""Read the document file: its keys, its checks, its JSON Schema.

In reading order: `model`, `types`, `json_schema`.
"""
