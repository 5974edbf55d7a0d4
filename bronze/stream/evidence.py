"""Which transactions prove that a server's log is the log that bronze followed, where a doubt arose.

**The doubt.** A server does not always send one log alike. A transaction T writes a table and is open while
the table joins or leaves the publication. A later transaction writes the table, too, and commits before T.
The walsender keeps what it found out about a table, and decodes in the order of commits. So it judges T's
first changes by the later publication, if it decoded the later transaction before. A walsender that starts in
between judges them by the publication of their own time. One sends T, and the other sends nothing of T.
Newer minor releases (`bronze.drift.joining`) tell T of the publication's change at the change's own place,
which leaves T's changes before that place as they were.

**What proves something.** A change counts if bronze relies on the change: its table has a snapshot from
before bronze's newest transaction, needs no other one, and is carried as at the last look
(`bronze.drift.membership`). Every other table is copied again, or not read at all, or has a snapshot after
T's end. Such a snapshot waits for the transactions that run at its beginning. The message that follows it is
sent in any case, and proves the log from there on. Until then a server that was started again could be
another one, so such a table is copied again, too (`bronze.reader.session_start`). So bronze keeps no row of
T, whichever way T was sent, and whichever history the server has.

**Messages** count after bronze's newest transaction alone: bronze has no row of the messages of deltasmelt,
and cannot tell whether it received an earlier one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bronze.drift.membership import fingerprints
from bronze.lake import delta
from bronze.lake.transactions import transaction_version
from bronze.lsn import Lsn
from bronze.store.contract import OP_MESSAGE, OP_SNAPSHOT, OP_SNAPSHOT_END
from bronze.store.marks import fingerprint_app, snapshot_of
from bronze.store.position import SentTransaction
from bronze.store.resnapshot import needs_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg
    from deltalake import DeltaTable

    from bronze.shapes import Relation

_COLUMNS: Final = ["commit_lsn", "commit_ts", "op", "relation_id"]


def counting_relations(
    connection: psycopg.Connection[Any],
    publication: str,
    changes: DeltaTable,
    relations: Iterable[Relation],
    sent: SentTransaction,
) -> frozenset[int]:
    """Return the OIDs of the tables of which bronze relies on the stream's changes.

    Args:
        connection: idle, in autocommit mode.
        publication: its name.
        changes: `bronze.changes`.
        relations: all versions of shapes, oldest first.
        sent: the newest transaction that bronze received.
    """
    tables = {relation.relation_id: relation.table for relation in relations}
    carried = fingerprints(connection, publication, set(tables.values()))
    found = set()
    for relation_id, table in tables.items():
        taken = snapshot_of(changes, table)
        relied = taken is not None and taken <= sent.lsn and not needs_snapshot(changes, table)
        if relied and transaction_version(changes, fingerprint_app(table)) == carried[table]:
            found.add(relation_id)
    return frozenset(found)


def newest_counting(
    changes: DeltaTable, counts: frozenset[int], sent: SentTransaction, confirmed: Lsn
) -> SentTransaction:
    """Return the newest transaction of bronze that proves something, from the slot's place on.

    Args:
        changes: `bronze.changes`.
        counts: OIDs of the tables whose changes count.
        sent: the newest transaction that bronze received. It counts where bronze has no row of it: a message.
        confirmed: the slot's place; what lies before it needs no proof.
    """
    newest, kept = SentTransaction(Lsn(confirmed - 1), 0), sent.lsn < confirmed
    for batch in delta.batches(changes, _COLUMNS, after=("commit_lsn", confirmed - 1)):
        rows = _streamed(batch)
        kept = kept or sent.lsn in set(rows["commit_lsn"].to_pylist())
        relied = pc.or_(
            pc.equal(rows["op"], OP_MESSAGE),
            pc.is_in(rows["relation_id"], pa.array(sorted(counts), pa.int64())),
        )
        rows = rows.filter(relied)
        if rows.num_rows:
            last = rows.take(pc.select_k_unstable(rows, 1, sort_keys=[("commit_lsn", "descending")]))
            lsn, time = Lsn(last["commit_lsn"][0].as_py()), last["commit_ts"][0].as_py()
            newest = max(newest, SentTransaction.of(lsn, time), key=lambda one: one.lsn)
    return newest if kept else sent


def _streamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that the stream brought."""
    copied = pc.or_(pc.equal(batch["op"], OP_SNAPSHOT), pc.equal(batch["op"], OP_SNAPSHOT_END))
    return batch.filter(pc.invert(copied))
