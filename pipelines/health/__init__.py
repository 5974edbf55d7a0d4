"""The state of a pipeline, as values; `commands` prints them.

In reading order: `check`, `status`, `slot_words`, `status_json`, `standing`.
"""
