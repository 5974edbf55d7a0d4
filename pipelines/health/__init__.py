"""The state of a pipeline as values; `pipelines.commands` prints the values.

In reading order: `check`, `status`, `status_json`, `stalled`.
"""
