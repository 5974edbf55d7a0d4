"""Read SQL in documents: the allowed part of SQL, and its meaning.

In reading order: `tokens` and `scanner`, `grammar` and `operators`, `functions`, `compared`, `expressions`
(the public part), `clock_texts` and `coercions` (texts that Spark would read as moments).
"""
