"""The commands of deltasmelt, one file for each.

In reading order: `context` (what several commands open), `run`, `snapshot`, `check`, `status`, `tail`,
`sql`, `preview`, `rebuild`, `maintain`, `verify` with `comparing`, `explain`, `quality`, `drop`, `forget`
with `subjects` (its keys) and `erasing` (its steps).
"""
