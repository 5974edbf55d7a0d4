"""Turn a table's activity in a window into the steps that fold the window. Pure.

In reading order: `activity` (the window's content, and the work for a table), `steps`, `history_steps` (for a
table with history), `derivable` (what bronze can rebuild).
"""
