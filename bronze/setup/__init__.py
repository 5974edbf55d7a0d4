"""Create what the source lacks: the publication, the slot, the slot's mark for standbys.

In reading order: `publication`, `slot`, `create_slot`, `slot_mark` (the lake that reads the slot),
`failover`.
"""
