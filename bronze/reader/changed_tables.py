"""Derive from a catalog poll which tables of bronze lack rows.

Rows are missing if the publication did not carry a table for a while (`bronze.drift.membership`), and if rows
changed without an event (`bronze.drift.storage`). Each such table gets a gap and a request. The next snapshot
heals both; silver leaves the table out until then.

**Tables without writes.** No message announces such a table, however its columns change. So a poll itself
records the shape, as a version that begins at the poll (`bronze.reader.quiet_shapes`), in two cases:

* The version that holds at the poll has another shape.
* The catalog's row of a column is new, and the stream has not read everything from before the poll. The
  stream may still bring versions from between two polls, and afterwards the table may have its former shape
  again.

The version lies ahead of messages unread by the stream, and describes no row of these messages. Versions
count by place, and the stream compares a message with the version before the message's own place
(`bronze.pgoutput.relation_versions`). Silver reads the version when bronze's frontier has passed the place;
the reader moves the frontier past the place (`bronze.reader.carried_tables.CatalogPoll.shapes_at`).

A poll records the shape first and the storage afterwards. After a kill in between, the next poll does both
again.
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
from deltasmelt.bronze.store.rule_marks import STILL_HELD

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.drift.storage import Storage
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.reader.quiet_shapes import Recorded
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.landing import Landing

_LOGGER = logging.getLogger("deltasmelt.reader")


class UnderWay(NamedTuple):
    """The state of a table in the poll before the running copy; the copy has the same state."""

    storage: Storage | None
    # the table's version with columns in doubt that the stream had met by then; zero without one
    unknown: Lsn


def resnapshot_unpublished(
    landing: Landing,
    source: SourceSettings,
    selected: Collection[TableName],
    memberships: Mapping[TableName, int],
    lsn: Lsn,
    *,
    frontier: Lsn,
    ruled: Collection[TableName],
) -> None:
    """Request tables whose changes were temporarily unpublished or left out; forget dropped tables.

    Args:
        source: names the publication and the rules.
        selected: all selected tables, including tables that are left out.
        memberships: the current way in which each carried table is carried
            (`bronze.drift.membership.fingerprints`).
        lsn: end of the log after `memberships` was read.
        frontier: bronze's frontier before the first query.
        ruled: the tables whose rules may differ from the recorded rules.
    """
    left_out = sorted(landing.shapes.tables() - set(selected))
    fingerprints = {table: memberships.get(table, NOT_CARRIED) for table in selected}
    carried = [table for table in ruled if memberships.get(table, NOT_CARRIED) != NOT_CARRIED]
    rules = landing.sink.tables.changed_rules(source.rules, carried)
    copied = landing.sink.tables.snapshots(list(rules.reasons))
    opened = landing.sink.tables.note_membership(fingerprints, left_out, lsn, rules)
    for table in opened:
        if (reason := rules.reasons.get(table)) is not None:
            if table not in copied:  # the first rules of a table are no news
                continue
            _LOGGER.warning("%s is resnapshotted: %s; %s", table, reason, STILL_HELD)
            landing.progress.set(said=f"{table} is resnapshotted: {reason}; {STILL_HELD}")
            continue
        _LOGGER.warning(
            "%s is resnapshotted: publication %s did not contain all of the table, or the reader left out "
            "its changes, for a while before %s",
            table,
            source.publication,
            lsn,
        )
        landing.progress.set(said=f"{table} is resnapshotted: the table was not published the whole time")
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
    """Request tables whose rows may have changed without an event; record the shapes of the other tables.

    Args:
        needing: tables that need a snapshot anyway.
        unknown: versions with columns in doubt (`bronze.store.relations.ShapeLog.unknown_columns`).
        lsn: the server's WAL position after the poll.
        streamed: partitions that the stream had named before the poll.
        frontier: bronze's frontier before the poll.
        record: records the shapes that still hold (`bronze.reader.quiet_shapes`).
    """
    sink = landing.sink
    snapshots = sink.tables.snapshots([table.table for table in tables]) if unknown or streamed else {}
    changed: list[TableName] = []
    harmless: dict[TableName, ObservedStorage] = {}
    quiet: dict[TableName, Relation] = {}
    for table in tables:
        stored = sink.tables.observed_storage(table.table)
        doubtful = unknown.get(table.relation.relation_id, ZERO)
        copied = under_way.get(table.table)
        if table.storage is None or (
            # A table under copy differs from the record for the very reason of the copy. If the copy ended
            # between comparison and request, the request would cause another copy, maybe of hours. So nothing
            # counts as new while the table has its state from before the copy.
            copied is not None and copied.storage == table.storage and copied.unknown == doubtful
        ):
            continue
        waits = table.table in needing
        carried = () if stored is None or waits else _carried_defaults(landing, table, stored.storage)
        reason = None if stored is None else stored.why_again(table.storage, carried)
        named = streamed.get(table.table, StreamedParts())
        reason = reason or named.why_again(table.storage, snapshots.get(table.table, LAST))
        if doubtful > snapshots.get(table.table, LAST):
            reason = "a column was renamed or dropped before its changes were read"
        if reason is not None and landing.resnapshots:
            # The table's new state is not recorded: its snapshot records the state before its rows. A table
            # that waits for its snapshot counts as well; silver leaves the table out as soon as a difference
            # is known.
            changed.append(table.table)
            if not waits:
                _LOGGER.warning(
                    "%s is resnapshotted: %s, and the log contains no change for this", table.table, reason
                )
                landing.progress.set(said=f"{table.table} is resnapshotted: {reason}")
        elif not waits:
            current, relation = table.storage, table.relation
            observed = (
                ObservedStorage(current, lsn) if stored is None else stored.then(current, lsn, frontier)
            )
            # The catalog does not distinguish a column renamed and back from a column with a GRANT. So a
            # GRANT, too, adds an equal version while the stream is behind.
            if _is_unrecorded(landing, relation, lsn) or (stored or observed).may_have_versions(
                current, lsn, frontier
            ):
                quiet[table.table] = relation
            harmless[table.table] = observed
    if changed:
        sink.tables.open_gaps(changed, lsn)
    recorded = record(list(quiet.values()))
    # If the shape has changed again, or the lock is not granted, record neither shape nor storage.
    unrecorded = {name for name, version in quiet.items() if version.relation_id not in recorded.relations}
    sink.tables.record_storages(
        {name: storage for name, storage in harmless.items() if name not in unrecorded}
    )
    return recorded


def record_comments(landing: Landing, tables: Sequence[SourceTable]) -> None:
    """Record the tables' current comments (`bronze.store.comments`)."""
    comments = {table.table: table.comments for table in tables if table.comments is not None}
    landing.sink.tables.record_comments(comments)


def _carried_defaults(landing: Landing, table: SourceTable, known: Storage) -> set[int]:
    """Return columns new since `known`, by attnum, whose default is in bronze with the table's new shape."""
    plain = frozenset() if table.storage is None else plain_defaults(known, table.storage)
    texts = {column.attnum: column.missing for column in table.relation.columns}
    announced = landing.shapes.missing(table.relation.relation_id) if plain else {}
    return {
        attnum
        for attnum in plain
        if texts[attnum] is not None and announced.get(attnum, texts[attnum]) == texts[attnum]
    }


def _is_unrecorded(landing: Landing, relation: Relation, lsn: Lsn) -> bool:
    recorded = landing.shapes.at(relation.relation_id, lsn)
    # Parts of a shape that an older deltasmelt did not record are no difference.
    return recorded is None or not same_shape(recorded, as_recorded(relation, recorded))
