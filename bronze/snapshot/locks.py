"""The locks of a copy: who takes which, how many at a time, and what is compared where none was taken.

A lock of each table and partition in each connection fills the server's lock table, and then it is the
application that gets "out of shared memory". So:

* **Groups.** Tables are copied in groups (`groups`) whose locks are a part of the lock table (`lock_budget`).
* **One worker holds.** One worker locks a table, with its partitions (`Worker.lock`), and holds it to the
  end. Another that helps with it locks only what it reads, for as long as it reads it (`Worker.open`).
* **Of a table with more partitions than `lock_budget`**, only the root is locked before the snapshot:
  its shape stands. A partition is locked when it is read, and compared then (`Worker.open`).

What a worker locked to read is let go by going back to a savepoint: a released one would keep its locks,
those of the indexes too.

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
"""A group takes one part in so many of the lock table."""

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
"""The size of a table that it has not locked itself would be waited for."""


_HELD_QUERY: Final = """
    SELECT pid, relation
    FROM pg_locks
    WHERE pid = ANY (%s::int[]) AND locktype = 'relation' AND granted
"""


def sessions_of(
    session: Callable[[], closing[SourceConnection]], count: int, stack: ExitStack
) -> list[SourceConnection]:
    """Connections for workers: fewer where server, role or database has no more, but one at least.

    Of several that could be had one is given back then: the export of the snapshot needs a connection, too.
    """
    sessions: list[SourceConnection] = []
    while len(sessions) < count:
        try:
            sessions.append(stack.enter_context(session()))
        except TransientError as error:
            if not sessions or error.code != TOO_MANY.code:
                raise
            if len(sessions) > 1:
                sessions.pop().close()
            break
    return sessions


class LeafLostError(Exception):
    """A table or partition is not the one any more that the snapshot shows."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table, or a leaf partition, as the snapshot shows it.

    Attributes:
        root: OID of the table it belongs to, or its own.
        part: what the snapshot's catalog says of its storage.
        pages: its size, or an estimate.
    """

    root: int
    oid: int
    table: TableName
    part: Part
    pages: int


def weight(table: SourceTable) -> int:
    """How many locks a table takes with its partitions."""
    return len(table.storage.parts) if table.storage else 1 + len(table.partitions)


def groups(tables: Sequence[SourceTable], budget: int) -> Iterator[list[SourceTable]]:
    """The tables in order, cut into groups whose locks are within the budget. Pure.

    One with more partitions counts with its root alone, which is what is locked of it then.
    """
    group: list[SourceTable] = []
    used = 0
    for table in tables:
        locks = weight(table) if weight(table) <= budget else 1
        if group and used + locks > budget:
            yield group
            group, used = [], 0
        group.append(table)
        used += locks
    if group:
        yield group


def lock_budget(connection: SourceConnection) -> int:
    """How many locks the copies may hold: a part of what the server's lock table holds for certain."""
    row = connection.execute(
        "SELECT current_setting('max_locks_per_transaction')::int * "
        "(current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int)"
    ).fetchone()
    return max(int(row[0]) // _SHARE, 1) if row else 1


@dataclass(slots=True)
class Worker:
    """A connection whose transaction locks tables, then sees the exported snapshot.

    Attributes:
        timing: of its locks and commands.
        held: OIDs of what it has locked until its end.
        shared: OIDs of what any worker of the copy has.
        order: what it reads, what it holds first.
    """

    connection: SourceConnection
    timing: Timing
    held: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()
    order: deque[Leaf] = field(default_factory=deque)
    _open: Leaf | None = None

    @property
    def pid(self) -> int:
        """Its backend."""
        return self.connection.info.backend_pid

    def lock(self, table: SourceTable, seconds: float, *, whole: bool) -> None:
        """Lock a table until the end, before the transaction has a snapshot.

        Args:
            table: which.
            seconds: how long to wait for the lock.
            whole: with its partitions; children of table inheritance are tables of their own.

        Raises:
            psycopg.Error: among others the lock was not to be had in time.
        """
        only = "" if whole and table.kind == "p" else "ONLY "
        with within(seconds + self.timing.copy_command, self.connection), self.connection.transaction():
            self.connection.execute(lock_timeout(seconds).encode())
            self.connection.execute(f"LOCK TABLE {only}{table.table.quoted} IN ACCESS SHARE MODE".encode())
            # It outlives the savepoint: a COPY waits so long for an index that somebody recreates.
            self.connection.execute(lock_timeout(self.timing.partition_lock).encode())

    @contextmanager
    def locks_let_go(self) -> Iterator[None]:
        """What statements of the block lock, the catalog's own tables among them, is let go at its end."""
        self.connection.execute("SAVEPOINT leaf")
        yield
        self._let_go()

    def open(self, leaf: Leaf) -> bool:
        """Have a table or partition locked that is to be read; False where it is left to who has it.

        **Where another worker has it**, at once or not at all. A session that waits for the first worker's
        lock, an ALTER TABLE say, is in front of the second's, and would wait for us while we wait for it. The
        server cannot see that circle. What a helper cannot have is left to the worker that has it.

        **Where nobody has it**, it is compared with what the snapshot shows of it. A new file (TRUNCATE, a
        rewrite) looks empty to a snapshot from before, and one that was detached may have been altered. Where
        they differ the copy of that table fails, and is repeated. So it is for a partition that was attached
        after the locks.

        Raises:
            LeafLostError: it is not what the snapshot shows.
            psycopg.Error: among others the lock was not to be had in time.
        """
        if self._open is leaf:
            return True
        self.close()
        if leaf.oid in self.held:
            return True
        known = leaf.oid in self.shared
        how = " NOWAIT" if known else ""
        with within(self.timing.partition_lock + self.timing.copy_command, self.connection):
            self.connection.execute("SAVEPOINT leaf")
            try:
                self.connection.execute(
                    f"{lock_timeout(self.timing.partition_lock)}; "
                    f"LOCK TABLE ONLY {leaf.table.quoted} IN ACCESS SHARE MODE{how}".encode()
                )
                if not known:
                    self._compare(leaf)
            except (psycopg.Error, LeafLostError) as error:
                if not self.connection.closed:
                    self._let_go()
                if known and isinstance(error, psycopg.errors.LockNotAvailable):
                    return False
                raise
        self._open = leaf
        return True

    def close(self) -> None:
        """Let go what `open` locked."""
        if self._open is not None:
            self._open = None
            with within(self.timing.copy_command, self.connection):
                self._let_go()

    def _let_go(self) -> None:
        self.connection.execute("ROLLBACK TO SAVEPOINT leaf; RELEASE SAVEPOINT leaf")

    def _compare(self, leaf: Leaf) -> None:
        """These functions look at the catalog of now, not at the snapshot's."""
        row = self.connection.execute(
            "SELECT to_regclass(%(name)s)::oid, pg_relation_filenode(%(oid)s::oid)::bigint, "
            "coalesce(pg_partition_root(%(oid)s::oid)::oid, %(oid)s::oid)",
            {"name": leaf.table.quoted, "oid": leaf.oid},
        ).fetchone()
        if row != (leaf.oid, leaf.part.file, leaf.root):
            raise LeafLostError(f"{leaf.table} was truncated, rewritten or detached")


def held_by(connection: SourceConnection, workers: Sequence[Worker]) -> None:
    """Note what each worker has locked, as the server knows it: also partitions that nobody had named."""
    pids = [worker.pid for worker in workers]
    held: dict[int, set[int]] = {pid: set() for pid in pids}
    for pid, relation in connection.execute(_HELD_QUERY, [pids]):
        held[pid].add(relation)
    every = frozenset().union(*held.values())
    for worker in workers:
        worker.held, worker.shared = frozenset(held[worker.pid]), every


def leaves_of(worker: Worker, oids: Sequence[int]) -> dict[int, list[Leaf]]:
    """What is to be read of each table: itself, or its leaf partitions in name order.

    Args:
        worker: who has locked the tables; what its snapshot shows as a partition is one.
        oids: of the tables.
    """
    found: dict[int, list[Leaf]] = {oid: [] for oid in oids}
    rows = worker.connection.execute(_LEAVES_QUERY, {"oids": list(oids), "held": list(worker.held)})
    for root, oid, schema, name, file, toast, attached, pages in rows:
        table = TableName(schema, name)
        part = Part(str(table), file, attached, toast=toast)
        found[root].append(Leaf(root, oid, table, part, int(pages or 0)))
    return found


class ChunkQueue:
    """The chunks of a copy by table or partition; each worker begins with what it holds itself.

    Args:
        chunks: all of them, in order.
        leaves: every table and partition that they read.
        workers: who reads them.
    """

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
        known = [leaf for leaf in leaves if leaf.table in self._chunks]
        for number, worker in enumerate(workers):
            own = [leaf for leaf in known if leaf.oid in worker.held]
            others = [leaf for leaf in known if leaf.oid not in worker.held]
            # Not all at the same place.
            turn = number * len(others) // len(workers)
            worker.order = deque([*own, *others[turn:], *others[:turn]])

    def first(self, worker: Worker) -> tuple[Leaf, TableCopy] | None:
        """What a worker is to open next, and whose it is; None where nothing is left for it."""
        with self._lock:
            while worker.order:
                chunks = self._chunks[worker.order[0].table]
                if chunks:
                    return worker.order[0], chunks[0][0]
                worker.order.popleft()
        return None

    def take(self, leaf: Leaf) -> tuple[TableCopy, Chunk] | None:
        """The next chunk of what was opened; None where others took the last one."""
        with self._lock:
            chunks = self._chunks[leaf.table]
            return chunks.popleft() if chunks else None
