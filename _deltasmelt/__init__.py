"""What runs before any other package of deltasmelt: are `bronze`, `silver`, `gold` and `pipelines` ours?

Many repositories have folders of these names, and Python takes the first on its path. The names `deltasmelt`
and `_deltasmelt` are nobody else's, so they are found where the others are not. `ours` looks; `command` is
`smelt`.
"""
