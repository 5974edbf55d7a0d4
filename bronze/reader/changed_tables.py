"""What a look at the catalog means for tables that bronze has: which of them lack rows.

Rows are missing where the publication did not carry a table for a while (`bronze.drift.membership`), and
where they changed without an event (`bronze.drift.storage`). Each such table gets a gap and a request, which
its next snapshot heals; silver leaves it out until then.

**Tables that nobody writes to.** No message announces such a table, however its columns change. A look
therefore records the shape itself, as a version that begins at the look (`bronze.reader.quiet_shapes`), in
two cases:

* The version that holds at the look has another shape. What an older deltasmelt did not record of a shape
  is no difference (`bronze.shapes.as_recorded`).
* The catalog's row of a column is new, and the stream has not read all from before the look. The stream may
  still bring versions from between two looks, after which the table may have its former shape again. The
  catalog does not tell a column that was renamed and back from one that got a GRANT. So a GRANT, too, adds an
  equal version while the stream is behind.

The version lies ahead of messages that the stream has not read, and describes no row of these: versions count
by place, and the stream compares a message with the version before the message's own place
(`bronze.pgoutput.relation_versions`). Silver takes the version over when bronze's frontier has passed the
place; the reader makes the frontier pass it (`bronze.reader.carried_tables.CatalogPoll.shapes_at`).

A look records the shape first and the storage afterwards. After a kill in between, the next look does both
again. When the shape does not stand any more, or the lock is not granted, the look records neither.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from deltasmelt.bronze.drift.membership import NOT_CARRIED
from deltasmelt.bronze.drift.observed_storage import ObservedStorage
from deltasmelt.bronze.drift.storage import plain_defaults
from deltasmelt.bronze.drift.streamed import StreamedParts
from deltasmelt.bronze.lsn import LAST, ZERO, Lsn
from deltasmelt.bronze.shapes import as_recorded, same_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.drift.storage import Storage
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.reader.quiet_shapes import Recorded
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.landing import Landing

_LOGGER = logging.getLogger("deltasmelt.reader")


class UnderWay(NamedTuple):
    """What a look saw of a table before the copy of it that is under way; so the copy has it.

    Attributes:
        storage: of the table.
        unknown: its version with columns in doubt, which the stream had met by then; zero where it had none.
    """

    storage: Storage | None
    unknown: Lsn


def resnapshot_unpublished(
    landing: Landing,
    publication: str,
    selected: Collection[TableName],
    seen: Mapping[TableName, int],
    lsn: Lsn,
    *,
    frontier: Lsn,
) -> None:
    """Ask for tables whose changes were not all published, or left out, for a while; forget what is gone.

    Args:
        landing: where bronze keeps how tables are carried.
        publication: its name.
        selected: all selected tables, also those that are left out.
        seen: how each carried table is carried now (`bronze.drift.membership.fingerprints`).
        lsn: end of the log after that was read.
        frontier: bronze's before the server was asked.
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
    landing.sink.tables.forget(left_out, lsn, frontier)


def resnapshot_rewritten(
    landing: Landing,
    tables: Sequence[SourceTable],
    needing: Collection[TableName],
    unknown: Mapping[int, Lsn],
    lsn: Lsn,
    *,
    streamed: Mapping[TableName, StreamedParts],
    frontier: Lsn,
    under_way: Mapping[TableName, UnderWay],
    record: Callable[[Sequence[Relation]], Recorded],
) -> Recorded:
    """Ask for the tables whose rows may have changed without an event; record the shapes of the others.

    What was seen of a table that is asked for is not recorded: its snapshot does that, before its rows. So
    also a table that waits for its snapshot is compared; silver leaves it out as soon as it is known to
    differ. A table that is being copied differs from what is recorded by the very reason of its copy. Should
    the copy end between the comparing and the asking, it would be made once more, which may take hours:
    nothing is new of the table while it looks as it did before that copy.

    Args:
        landing: where bronze keeps what was seen of tables.
        tables: as the catalog says now.
        needing: those that need a snapshot anyway.
        unknown: versions with columns in doubt (`bronze.store.relations.ShapeLog.unknown_columns`).
        lsn: the server's WAL position after that look.
        streamed: partitions that the stream had named before that look.
        frontier: bronze's before that look.
        under_way: tables that are being copied.
        record: records the shapes that still stand (`bronze.reader.quiet_shapes`).

    Returns:
        What became of the shapes.
    """
    sink = landing.sink
    snapshots = sink.tables.snapshots([table.table for table in tables]) if unknown or streamed else {}
    changed: list[TableName] = []
    harmless: dict[TableName, ObservedStorage] = {}
    quiet: dict[TableName, Relation] = {}
    for table in tables:
        known = sink.tables.looked(table.table)
        doubtful = unknown.get(table.relation.relation_id, ZERO)
        copied = under_way.get(table.table)
        if table.storage is None or (
            copied is not None and copied.storage == table.storage and copied.unknown == doubtful
        ):
            continue
        waits = table.table in needing
        carried = () if known is None or waits else _carried_defaults(landing, table, known.storage)
        why = None if known is None else known.why_again(table.storage, carried)
        named = streamed.get(table.table, StreamedParts())
        why = why or named.why_again(table.storage, snapshots.get(table.table, LAST))
        if doubtful > snapshots.get(table.table, LAST):
            why = "a column was renamed or dropped before its changes were read"
        if why is not None and landing.resnapshots:
            changed.append(table.table)
            if not waits:
                _LOGGER.warning("%s is resnapshotted: %s, of which the log says nothing", table.table, why)
                landing.progress.set(said=f"{table.table} is resnapshotted: {why}")
        elif not waits:
            now, relation = table.storage, table.relation
            looked = ObservedStorage(now, lsn) if known is None else known.then(now, lsn, frontier)
            if _is_unrecorded(landing, relation, lsn) or (known or looked).may_have_versions(
                now, lsn, frontier
            ):
                quiet[table.table] = relation
            harmless[table.table] = looked
    if changed:
        sink.tables.open_gaps(changed, lsn)
    recorded = record(list(quiet.values()))
    left = {name for name, one in quiet.items() if one.relation_id not in recorded.relations}
    sink.tables.record_looks({name: looked for name, looked in harmless.items() if name not in left})
    return recorded


def record_comments(landing: Landing, tables: Sequence[SourceTable]) -> None:
    """Keep the comments that these tables have now (`bronze.store.comments`)."""
    seen = {table.table: table.comments for table in tables if table.comments is not None}
    landing.sink.tables.record_comments(seen)


def _carried_defaults(landing: Landing, table: SourceTable, known: Storage) -> set[int]:
    """Return new columns, by attnum, whose default is in bronze as soon as the table's shape is recorded.

    Args:
        landing: where shapes are.
        table: as the catalog says now.
        known: what was seen of it before.
    """
    plain = frozenset() if table.storage is None else plain_defaults(known, table.storage)
    texts = {column.attnum: column.missing for column in table.relation.columns}
    announced = landing.shapes.missing(table.relation.relation_id) if plain else {}
    return {
        attnum
        for attnum in plain
        if texts[attnum] is not None and announced.get(attnum, texts[attnum]) == texts[attnum]
    }


def _is_unrecorded(landing: Landing, relation: Relation, lsn: Lsn) -> bool:
    known = landing.shapes.at(relation.relation_id, lsn)
    return known is None or not same_shape(known, as_recorded(relation, known))
