"""What a table did in a window to the steps that fold it. Pure.

In reading order: `activity` (what the window holds), `work` (what is to be done), `steps`, `history_steps`
(of a table with history).
"""
