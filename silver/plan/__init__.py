"""What a table did in a window to the steps that fold it. Pure.

In reading order: `steps`, `history_steps` (of a table with history).
"""
