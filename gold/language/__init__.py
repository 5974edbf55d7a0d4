"""Read the document file: keys, checks, JSON Schema.

In reading order: `model`, `types`, `json_schema`.
"""
