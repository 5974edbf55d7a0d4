"""Resolve a document against silver's tables, and report the document's problems.

In reading order: `nodes` (a resolved document), `resolve`, `derived` and `comparisons` (further columns),
`text_order` (where a document orders text), `check`.
"""
