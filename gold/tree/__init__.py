"""Resolve a document against silver's tables, and report the document's problems.

In reading order: `resolve`, `check`.
"""
