"""The commands of `smelt`, one file for each.

In reading order: `run`, `snapshot`, `check`, `status`, `rebuild`, `maintain`, `verify`, `explain`, `quality`,
`drop`.
"""
