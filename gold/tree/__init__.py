"""A document resolved against silver's tables, and what is wrong with it.

In reading order: `resolve`, `check`.
"""
