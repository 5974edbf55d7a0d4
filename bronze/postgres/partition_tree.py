"""Tables with all their partitions, at whatever depth: the query with which questions about them begin."""

from __future__ import annotations

from typing import Final

TREE: Final = """
    WITH RECURSIVE tree (root, oid, attached, detaching) AS (
        SELECT r.oid, r.oid, 0::bigint, false FROM unnest(%(oids)s::oid[]) AS r (oid)
        UNION ALL
        SELECT tree.root, i.inhrelid, i.xmin::text::bigint, tree.detaching OR i.inhdetachpending
        FROM tree
        JOIN pg_class parent ON parent.oid = tree.oid AND parent.relkind = 'p'
        JOIN pg_inherits i ON i.inhparent = tree.oid
    )"""
"""A row for each table of `oids`, which is its own root, and for each of its partitions, those that have
partitions themselves among them. `attached` is the xmin of its row in pg_inherits, 0 of the root; `detaching`
says that DETACH CONCURRENTLY took it, or what it is a part of, away from queries already. Children of table
inheritance are tables of their own. A further CTE may follow after a comma.
"""
