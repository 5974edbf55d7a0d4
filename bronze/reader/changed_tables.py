"""What a look at the catalog means for tables that bronze has: which of them lack rows.

Rows are missing where the publication did not carry a table for a while (`bronze.drift.membership`), and
where they changed without an event (`bronze.drift.storage`). Each such table gets a gap and a request, which
its next snapshot heals; silver leaves it out until then.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from bronze.drift.looks import Looked, lacks_columns
from bronze.drift.membership import NOT_CARRIED
from bronze.drift.storage import plain_defaults, why_again
from bronze.lsn import LAST, ZERO, Lsn

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from bronze.catalog.source_table import SourceTable
    from bronze.drift.storage import Storage
    from bronze.identifiers import TableName
    from bronze.shapes import Relation
    from bronze.store.landing import Landing

_LOGGER = logging.getLogger("deltasmelt.reader")


class UnderWay(NamedTuple):
    """What a look saw of a table before the copy of it that is under way; so the copy has it.

    Attributes:
        storage: of the table.
        unknown: its version with columns in doubt, which the stream had met by then; zero where it had none.
    """

    storage: Storage | None
    unknown: Lsn


def ask_for_unpublished(
    landing: Landing,
    publication: str,
    selected: Collection[TableName],
    seen: Mapping[TableName, int],
    lsn: Lsn,
) -> None:
    """Ask for tables whose changes were not all published, or left out, for a while.

    Args:
        landing: where bronze keeps how tables are carried.
        publication: its name.
        selected: all selected tables, also those that are left out.
        seen: how each carried table is carried now (`bronze.drift.membership.fingerprints`).
        lsn: end of the log after that was read.
    """
    left_out = sorted(landing.shapes.tables() - set(selected))
    every = {table: seen.get(table, NOT_CARRIED) for table in selected}
    for table in landing.sink.tables.note_membership(every, left_out, lsn):
        _LOGGER.warning(
            "%s is resnapshotted: publication %s did not carry all of it, or its changes were "
            "left out, for a while before %s",
            table,
            publication,
            lsn,
        )
        landing.progress.set(said=f"{table} is resnapshotted: it was not published all the time")


def ask_for_changed(
    landing: Landing,
    tables: Sequence[SourceTable],
    needing: Collection[TableName],
    unknown: Mapping[int, Lsn],
    lsn: Lsn,
    *,
    frontier: Lsn,
    under_way: Mapping[TableName, UnderWay],
) -> None:
    """Ask for the tables whose rows may have changed without an event.

    What was seen of such a table is not recorded: its snapshot does that, before its rows. So also a table
    that waits for its snapshot is compared; silver leaves it out as soon as it is known to differ. One that
    is being copied differs from what is recorded by the very reason of its copy. Should that end between the
    comparing and the asking, it would be copied once more, which may take hours: nothing is new of it while
    it looks as it did before that copy.

    Args:
        landing: where bronze keeps what was seen of tables.
        tables: as the catalog says now.
        needing: those that need a snapshot anyway.
        unknown: versions with columns in doubt (`bronze.store.relations.ShapeLog.unknown_columns`).
        lsn: the server's WAL position after that look.
        frontier: bronze's before that look.
        under_way: tables that are being copied.
    """
    sink = landing.sink
    snapshots = sink.tables.snapshots([table.table for table in tables]) if unknown else {}
    changed, harmless = [], {}
    for table in tables:
        known = sink.tables.looked(table.table)
        doubtful = unknown.get(table.relation.relation_id, ZERO)
        copied = under_way.get(table.table)
        if table.storage is None or (
            copied is not None and copied.storage == table.storage and copied.unknown == doubtful
        ):
            continue
        waits = table.table in needing
        carried = () if known is None else _carried_defaults(landing, table, known.storage, lsn, waits=waits)
        why = None if known is None else known.why_again(table.storage, carried)
        if doubtful > snapshots.get(table.table, LAST):
            why = "a column was renamed or dropped before its changes were read"
        if why is not None and landing.resnapshots:
            changed.append(table.table)
            if not waits:
                _LOGGER.warning("%s is resnapshotted: %s, of which the log says nothing", table.table, why)
                landing.progress.set(said=f"{table.table} is resnapshotted: {why}")
        elif not waits:
            now, relation = table.storage, table.relation
            harmless[table.table] = Looked(now, lsn) if known is None else known.then(now, lsn, frontier)
            if lacks_columns(landing.shapes.at(relation.relation_id, Lsn(lsn - 1)), relation):
                _record(landing, relation, lsn)
    if changed:
        sink.tables.open_gaps(changed, lsn)
    sink.tables.record_looks(harmless)


def record_comments(landing: Landing, tables: Sequence[SourceTable]) -> None:
    """Keep the comments that these tables have now (`bronze.store.comments`)."""
    seen = {table.table: table.comments for table in tables if table.comments is not None}
    landing.sink.tables.record_comments(seen)


def _carried_defaults(
    landing: Landing, table: SourceTable, known: Storage, lsn: Lsn, *, waits: bool
) -> set[int]:
    """New columns whose default is in bronze, by attnum; where the stream did not bring it, we do.

    Args:
        landing: where shapes are.
        table: as the catalog says now.
        known: what was seen of it before.
        lsn: end of the log after the look.
        waits: the table waits for a snapshot anyway.
    """
    now, shapes = table.storage, landing.shapes
    plain = frozenset() if now is None or waits else plain_defaults(known, now)
    if not plain or now is None:
        return set()
    texts = {column.attnum: column.missing for column in table.relation.columns}
    announced = shapes.missing(table.relation.relation_id)
    if plain - announced.keys() and why_again(known, now, plain) is None:
        _record(landing, table.relation, lsn)
        announced = shapes.missing(table.relation.relation_id)
    return {
        attnum for attnum in plain if texts[attnum] is not None and announced.get(attnum) == texts[attnum]
    }


def _record(landing: Landing, relation: Relation, lsn: Lsn) -> None:
    """Record a shape that a look saw: a table that nobody writes to is announced by no message.

    Every transaction that commits after the look wrote its rows in this shape, for ALTER TABLE waits for
    those who wrote before it. That they may be in bronze already does no harm: no version of the stream comes
    after this one and has other columns, unless it announces them.

    Args:
        landing: where shapes are.
        relation: as the catalog says now.
        lsn: end of the log after the look. The shape holds from the byte before it, which is after the
            commit of whoever made the shape.
    """
    landing.shapes.record([replace(relation, from_lsn=Lsn(lsn - 1))], ahead=True)
