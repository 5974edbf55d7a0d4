"""SQL in documents: which of it is allowed, and what it means.

In reading order: `tokens` and `scanner`, `grammar` and `operators`, `functions`, `expressions` (the face of
it), `instants` and `meetings` (texts that Spark would read as moments).
"""
