"""Select the transactions that prove a server's log to be bronze's log, after a difference was found.

**A server may send one log in two ways.** A transaction T writes a table and stays open while the table joins
or leaves the publication. Another transaction writes the table afterwards and commits before T. A walsender
caches whether the publication carries a table, and decodes transactions in the order of commits. A walsender
that decodes both judges T's first changes by the later publication. A walsender started in between judges
these changes by the publication of their time. So one walsender sends T, and the other sends nothing of T.
Newer minor releases (`bronze.drift.joining`) apply the publication's change inside T at the change's own
place, so T's changes before this place are sent as before.

**Changes that count.** Bronze relies on the stream for a table if three conditions hold. The table's snapshot
is older than bronze's newest transaction. No newer snapshot is requested. The publication carries the table
as in the last catalog poll (`bronze.drift.membership`). All changes of such tables count. For every other
table, the reader copies the table again, or does not read the table, or took the snapshot after T's end. (A
snapshot waits for the transactions that run when the snapshot begins.) So bronze keeps no row of T, however T
was sent and whichever history the server has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.drift.membership import NOT_CARRIED, fingerprints
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.contract import OP_MESSAGE, OP_SNAPSHOT, OP_SNAPSHOT_END
from deltasmelt.bronze.store.gaps import needs_snapshot
from deltasmelt.bronze.store.marks import fingerprint_app, snapshot_of
from deltasmelt.bronze.store.position import SentTransaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import psycopg

    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.shapes import Relation

_COLUMNS: Final = ["commit_lsn", "commit_ts", "op", "relation_id"]


def counting_relations(
    connection: psycopg.Connection[Any],
    publication: str,
    changes: Table,
    relations: Iterable[Relation],
    sent: SentTransaction,
) -> dict[int, Lsn]:
    """Return the tables, by OID, for which bronze relies on the stream, with the LSNs of their snapshots.

    Args:
        connection: idle and in autocommit mode.
        relations: all versions of shapes, oldest first.
    """
    tables = {relation.relation_id: relation.table for relation in relations}
    carried = fingerprints(connection, publication, set(tables.values()))
    snapshots = {}
    for relation_id, table in tables.items():
        snapshot = snapshot_of(changes, table)
        if snapshot is None or snapshot > sent.lsn or needs_snapshot(changes, table):
            continue
        if changes.transaction_version(fingerprint_app(table)) == carried[table] != NOT_CARRIED:
            snapshots[relation_id] = snapshot
    return snapshots


def newest_counting(
    changes: Table, counts: Mapping[int, Lsn], sent: SentTransaction, confirmed: Lsn
) -> SentTransaction:
    """Return the newest transaction of bronze, from the slot's place on, that proves bronze's log.

    Args:
        counts: snapshots of the tables whose changes count, by OID.
        sent: bronze's newest transaction; a message, if bronze keeps no row of the transaction.
        confirmed: the slot's place; the log before needs no proof.
    """
    newest, has_sent = SentTransaction(Lsn(confirmed - 1), 0), sent.lsn < confirmed
    for batch in changes.batches(_COLUMNS, after=("commit_lsn", confirmed - 1)):
        rows = _streamed(batch)
        has_sent = has_sent or bool(pc.any(pc.equal(rows["commit_lsn"], int(sent.lsn))).as_py())
        relied = pc.or_(
            pc.equal(rows["op"], OP_MESSAGE),
            pc.is_in(rows["relation_id"], pa.array(sorted(counts), pa.int64())),
        )
        rows = rows.filter(relied)
        if rows.num_rows:
            last = rows.take(pc.select_k_unstable(rows, 1, sort_keys=[("commit_lsn", "descending")]))
            lsn, time = Lsn(last["commit_lsn"][0].as_py()), last["commit_ts"][0].as_py()
            newest = max(newest, SentTransaction.of(lsn, time), key=lambda newer: newer.lsn)
    # No transaction before a snapshot serves as evidence in place of bronze's newest transaction. A snapshot
    # is proved by the message that follows and that a server always sends; bronze keeps no row of the
    # message. Before bronze has received the message, a restarted server may be another server, and the
    # reader copies the table again (`bronze.reader.session_start`).
    unproved = any(snapshot > newest.lsn for snapshot in counts.values())
    return newest if has_sent and not unproved else sent


def _streamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that the stream brought."""
    copied = pc.or_(pc.equal(batch["op"], OP_SNAPSHOT), pc.equal(batch["op"], OP_SNAPSHOT_END))
    return batch.filter(pc.invert(copied))
