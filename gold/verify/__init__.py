"""A document beside a full rebuild of it.

In reading order: `verify`, `differences`.
"""
