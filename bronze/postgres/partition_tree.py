"""Tables with all their partitions, at any depth: the start of queries about both."""

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
"""A row for each table of `oids` (each is its own root), and for each partition, including partitions with
partitions. `attached` is the xmin of the partition's row in pg_inherits, 0 for the root. `detaching` means
that DETACH CONCURRENTLY already removed the partition, or a parent of it, from queries. A child of table
inheritance is a separate table. A further CTE may follow after a comma.
"""
