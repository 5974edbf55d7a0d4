"""One file a command of `smelt`.

In reading order: `run`, `snapshot`, `check`, `status`, `rebuild`, `maintain`, `verify`, `explain`, `quality`,
`drop`.
"""
