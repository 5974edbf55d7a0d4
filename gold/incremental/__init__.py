"""Find the roots that a window of silver's changes reaches.

In reading order: `change_feed`, `affected`, `key_lists`, `starts`.
"""
