"""The output of `smelt tail`: changes as they arrive in bronze.

In reading order: `records` (a row of bronze as a change), `masked` (columns whose values are hidden), `lines`
(a change as text or JSON), `feed` (the selection, and the limit of lines).
"""
