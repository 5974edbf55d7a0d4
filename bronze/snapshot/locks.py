"""Lock tables for a copy: the worker that takes a lock, the number of locks, the check without a lock.

A lock of each table and partition in each connection fills the server's lock table, and then the application
gets "out of shared memory". So:

* **Groups.** Tables are copied in groups (`groups`) whose locks fit into a part of the lock table
  (`lock_budget`).
* **One worker holds the lock** of a table and its partitions (`Worker.lock`) to the end. A helping worker
  locks only the partition in use, while reading the partition (`Worker.open`).
* **For a table with more partitions than `lock_budget`** only the root is locked before the snapshot, so the
  table's shape is fixed. A worker locks a partition before reading and then compares the partition
  (`Worker.open`).

PostgreSQL docs: https://www.postgresql.org/docs/current/explicit-locking.html and
https://www.postgresql.org/docs/current/runtime-config-locks.html (max_locks_per_transaction).
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import psycopg

from deltasmelt.bronze.drift.storage import Part
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.postgres.connection import lock_timeout, within
from deltasmelt.bronze.postgres.error_rules import TOO_MANY
from deltasmelt.bronze.postgres.partition_tree import TREE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import ExitStack, closing

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.timing import Timing
    from deltasmelt.bronze.postgres.connection import SourceConnection
    from deltasmelt.bronze.snapshot.chunks import Chunk
    from deltasmelt.bronze.snapshot.table_copy import TableCopy

_SHARE: Final = 4
"""Divisor of the lock table for the locks of a group."""

_LEAVES_QUERY: Final = f"""{TREE}
    SELECT tree.root,
           c.oid,
           n.nspname,
           c.relname,
           c.relfilenode::bigint,
           c.reltoastrelid::bigint,
           tree.attached,
           CASE WHEN c.oid = ANY (%(held)s::oid[])
                THEN pg_relation_size(c.oid) / current_setting('block_size')::bigint
                ELSE c.relpages END
    FROM tree
    JOIN pg_class c ON c.oid = tree.oid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind <> 'p' AND NOT tree.detaching
    ORDER BY tree.root, n.nspname, c.relname
"""
"""Reading the size of an unlocked table could wait for a lock, so the query takes an estimate instead."""


_HELD_QUERY: Final = """
    SELECT pid, relation
    FROM pg_locks
    WHERE pid = ANY (%s::int[]) AND locktype = 'relation' AND granted
"""


def sessions_of(
    session: Callable[[], closing[SourceConnection]], count: int, stack: ExitStack
) -> list[SourceConnection]:
    """Return connections for workers: fewer if server, role or database has no more, but at least one."""
    sessions: list[SourceConnection] = []
    while len(sessions) < count:
        try:
            sessions.append(stack.enter_context(session()))
        except TransientError as error:
            if not sessions or error.code != TOO_MANY.code:
                raise
            # The snapshot's export also needs a connection.
            if len(sessions) > 1:
                sessions.pop().close()
            break
    return sessions


class LeafLostError(Exception):
    """A table or partition differs from the snapshot's table or partition."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table, or a leaf partition, in the state of the snapshot."""

    # OID of the root table; for a plain table its own OID
    root: int
    oid: int
    table: TableName
    # storage of the leaf according to the snapshot's catalog
    part: Part
    # size of the leaf, or an estimate
    pages: int


def weight(table: SourceTable) -> int:
    """Return the number of locks for a table with its partitions."""
    return len(table.storage.parts) if table.storage else 1 + len(table.partitions)


def groups(tables: Sequence[SourceTable], budget: int) -> Iterator[list[SourceTable]]:
    """Cut the tables, in order, into groups whose locks fit the budget. Pure."""
    group: list[SourceTable] = []
    locks_of_group = 0
    for table in tables:
        # A table with more partitions than the budget counts as one lock, because only the root is locked.
        locks = weight(table) if weight(table) <= budget else 1
        if group and locks_of_group + locks > budget:
            yield group
            group, locks_of_group = [], 0
        group.append(table)
        locks_of_group += locks
    if group:
        yield group


def lock_budget(connection: SourceConnection) -> int:
    """Return how many locks the copies may hold: a part of the guaranteed size of the server's lock table."""
    row = connection.execute(
        "SELECT current_setting('max_locks_per_transaction')::int * "
        "(current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int)"
    ).fetchone()
    return max(int(row[0]) // _SHARE, 1) if row else 1


@dataclass(slots=True)
class Worker:
    """A connection whose transaction locks tables, then imports the exported snapshot."""

    connection: SourceConnection
    # time limits of locks and commands
    timing: Timing
    # OIDs of all relations that this worker holds until its end
    held: frozenset[int] = frozenset()
    # OIDs of all relations that any worker of the copy holds
    shared: frozenset[int] = frozenset()
    # leaves to read, beginning with the leaves that this worker holds
    order: deque[Leaf] = field(default_factory=deque)
    _open: Leaf | None = None

    @property
    def pid(self) -> int:
        """Process id of the connection's backend."""
        return self.connection.info.backend_pid

    def lock(self, table: SourceTable, seconds: float, *, whole: bool) -> None:
        """Lock a table until the end, before the transaction has a snapshot.

        `whole` locks the partitions, too; inheritance children are separate tables.

        Raises:
            psycopg.Error: among others, the lock was unavailable in time.
        """
        scope = "" if whole and table.kind == "p" else "ONLY "
        with within(seconds + self.timing.copy_command, self.connection), self.connection.transaction():
            self.connection.execute(lock_timeout(seconds).encode())
            self.connection.execute(f"LOCK TABLE {scope}{table.table.quoted} IN ACCESS SHARE MODE".encode())
            # This limit outlives the savepoint: a COPY waits so long for an index being recreated.
            self.connection.execute(lock_timeout(self.timing.partition_lock).encode())

    @contextmanager
    def locks_let_go(self) -> Iterator[None]:
        """Release all locks of the block's statements at its end, including locks of catalog tables."""
        self.connection.execute("SAVEPOINT leaf")
        yield
        self._let_go()

    def open(self, leaf: Leaf) -> bool:
        """Lock a table or partition before reading; return False if the holding worker must read the leaf.

        Raises:
            LeafLostError: the leaf differs from the snapshot's leaf.
            psycopg.Error: among others, the lock was unavailable in time.
        """
        if self._open is leaf:
            return True
        self.close()
        if leaf.oid in self.held:
            return True
        # A leaf held by another worker is locked at once or not at all. A session that waits for the first
        # worker's lock, for example an ALTER TABLE, is queued before this worker. The session would wait for
        # the reader while the reader waits for the session, a cycle invisible to the server. The holding
        # worker reads the leaf instead.
        is_shared = leaf.oid in self.shared
        nowait = " NOWAIT" if is_shared else ""
        with within(self.timing.partition_lock + self.timing.copy_command, self.connection):
            self.connection.execute("SAVEPOINT leaf")
            try:
                self.connection.execute(
                    f"{lock_timeout(self.timing.partition_lock)}; "
                    f"LOCK TABLE ONLY {leaf.table.quoted} IN ACCESS SHARE MODE{nowait}".encode()
                )
                if not is_shared:
                    # No worker held the leaf until now. A new file (TRUNCATE, a rewrite) looks empty to an
                    # older snapshot, and a detached partition may have been altered. A difference fails the
                    # table's copy, which the reader repeats. A partition attached after the locks is
                    # compared, too.
                    self._compare(leaf)
            except (psycopg.Error, LeafLostError) as error:
                if not self.connection.closed:
                    self._let_go()
                if is_shared and isinstance(error, psycopg.errors.LockNotAvailable):
                    return False
                raise
        self._open = leaf
        return True

    def close(self) -> None:
        """Release the lock taken by `open`."""
        if self._open is not None:
            self._open = None
            with within(self.timing.copy_command, self.connection):
                self._let_go()

    def _let_go(self) -> None:
        # RELEASE alone would keep the savepoint's locks, including the locks of the indexes.
        self.connection.execute("ROLLBACK TO SAVEPOINT leaf; RELEASE SAVEPOINT leaf")

    def _compare(self, leaf: Leaf) -> None:
        """Compare a leaf with the current catalog: these functions ignore the snapshot."""
        row = self.connection.execute(
            "SELECT to_regclass(%(name)s)::oid, pg_relation_filenode(%(oid)s::oid)::bigint, "
            "coalesce(pg_partition_root(%(oid)s::oid)::oid, %(oid)s::oid)",
            {"name": leaf.table.quoted, "oid": leaf.oid},
        ).fetchone()
        if row != (leaf.oid, leaf.part.file, leaf.root):
            raise LeafLostError(f"{leaf.table} was truncated, rewritten or detached")


def held_by(connection: SourceConnection, workers: Sequence[Worker]) -> None:
    """Read from the server all relations that each worker has locked, also partitions locked implicitly."""
    pids = [worker.pid for worker in workers]
    locked: dict[int, set[int]] = {pid: set() for pid in pids}
    for pid, relation in connection.execute(_HELD_QUERY, [pids]):
        locked[pid].add(relation)
    shared = frozenset().union(*locked.values())
    for worker in workers:
        worker.held, worker.shared = frozenset(locked[worker.pid]), shared


def leaves_of(worker: Worker, oids: Sequence[int]) -> dict[int, list[Leaf]]:
    """Return the leaves to read of each table: the table itself, or its leaf partitions in name order.

    Args:
        worker: the worker that has locked the tables; partitions are those of its snapshot.
    """
    leaves: dict[int, list[Leaf]] = {oid: [] for oid in oids}
    rows = worker.connection.execute(_LEAVES_QUERY, {"oids": list(oids), "held": list(worker.held)})
    for root, oid, schema, name, file, toast, attached, pages in rows:
        table = TableName(schema, name)
        part = Part(str(table), file, attached, toast=toast)
        leaves[root].append(Leaf(root, oid, table, part, int(pages or 0)))
    return leaves


class ChunkQueue:
    """The chunks of a copy by table or partition; each worker begins with its own leaves."""

    def __init__(
        self,
        chunks: Iterable[tuple[TableCopy, Chunk]],
        leaves: Iterable[Leaf],
        workers: Sequence[Worker],
    ) -> None:
        self._lock = threading.Lock()
        self._chunks: dict[TableName, deque[tuple[TableCopy, Chunk]]] = {}
        for copy, chunk in chunks:
            self._chunks.setdefault(chunk.source, deque()).append((copy, chunk))
        readable = [leaf for leaf in leaves if leaf.table in self._chunks]
        for number, worker in enumerate(workers):
            own_leaves = [leaf for leaf in readable if leaf.oid in worker.held]
            shared_leaves = [leaf for leaf in readable if leaf.oid not in worker.held]
            # Spread the workers over the leaves, so that few of them meet at one leaf.
            turn = number * len(shared_leaves) // len(workers)
            worker.order = deque([*own_leaves, *shared_leaves[turn:], *shared_leaves[:turn]])

    def first(self, worker: Worker) -> tuple[Leaf, TableCopy] | None:
        """Return the next leaf for a worker to open, and its table's copy; None if no chunk is left."""
        with self._lock:
            while worker.order:
                chunks = self._chunks[worker.order[0].table]
                if chunks:
                    return worker.order[0], chunks[0][0]
                worker.order.popleft()
        return None

    def take(self, leaf: Leaf) -> tuple[TableCopy, Chunk] | None:
        """Return the next chunk of an opened leaf; None if other workers took the last chunk."""
        with self._lock:
            chunks = self._chunks[leaf.table]
            return chunks.popleft() if chunks else None
