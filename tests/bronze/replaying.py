"""Bronze folded in plain Python, and the source as text, for comparison in the reader's tests.

The fold is the contract of `bronze.changes` in its plainest form: the newest complete snapshot, then every
later change in order.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import psycopg
from deltalake import DeltaTable
from pydantic import SecretStr

from deltasmelt.bronze.config.sections import BronzeSettings, SnapshotSettings, SourceSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.identifiers import TableName, quote_identifier
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.reader.reader import Reader
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.marks import snapshot_of
from deltasmelt.bronze.store.relations import read_relations

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.snapshot.executors import ExecutorsAtHand


Row = dict[str, str | None]


def source_of(dsn: str, *, timing: Timing | None = None, **more: Any) -> SourceSettings:
    """Return settings of a source in a test's own database, optionally with different timeouts.

    The slot carries the database's name, because all databases of a server share the names of slots.
    """
    name = (
        dsn.rpartition("/")[2].partition("dbname=")[2].split()[0]
        if "dbname=" in dsn
        else dsn.rpartition("/")[2]
    )
    settings = {"slot": f"smelt_{name}", "publication": "smelt", **more}
    return SourceSettings(dsn=SecretStr(dsn), **settings).with_timing(timing or Timing())


def session(source: SourceSettings | str) -> psycopg.Connection[Any]:
    """Open a connection to a source or DSN without the pinned settings of the reader."""
    if isinstance(source, SourceSettings):
        assert source.dsn is not None
        source = source.dsn.get_secret_value()
    return psycopg.connect(source, autocommit=True)


def execute(source: SourceSettings | str, *statements: str) -> None:
    """Run statements at a source or DSN, each in its own transaction.

    After a reader ended, its walsender may hold the slot a moment longer; a drop of the slot is retried.
    """
    deadline = time.monotonic() + 20
    with session(source) as connection:
        for statement in statements:
            while True:
                try:
                    connection.execute(statement.encode())
                except psycopg.errors.ObjectInUse:
                    if "pg_drop_replication_slot" not in statement or time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
                else:
                    break


def fetch(source: SourceSettings | str, query: str, *parameters: Any) -> Any:
    """Return the only value of a query."""
    with session(source) as connection:
        row = connection.execute(query.encode(), parameters).fetchone()
    assert row is not None
    return row[0]


def current_lsn(connection: psycopg.Connection[Any]) -> Lsn:
    """Return the current end of the server's log."""
    row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def make_reader(
    source: SourceSettings,
    lake_path: str,
    *,
    pipeline: str = "shop",
    reached: Callable[[str], None] | None = None,
    bronze: BronzeSettings | None = None,
    snapshot: SnapshotSettings | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
    executors: ExecutorsAtHand | None = None,
) -> Reader:
    """Create a reader with fast commits."""
    return Reader(
        pipeline,
        source,
        Lake(lake_path),
        bronze or BronzeSettings(flush_interval=0.05),
        snapshot or SnapshotSettings(),
        reached=reached,
        progress=progress,
        executors=executors,
    )


def read_all(
    source: SourceSettings, lake_path: str, *, stop: threading.Event | None = None, **more: Any
) -> Reader:
    """Run a reader until bronze holds the whole current log."""
    with connect(source) as connection:
        until = current_lsn(connection)
    reader = make_reader(source, lake_path, **more)
    reader.run(until=until, stop=stop)
    return reader


def read_snapshot(lake: Lake, table: TableName) -> Lsn | None:
    """Return the LSN of a table's newest complete snapshot in this lake; None without a snapshot."""
    changes = delta.open_table(lake.uri("bronze", CHANGES))
    return None if changes is None else snapshot_of(changes, table)


def bronze_rows(lake_path: str) -> list[dict[str, Any]]:
    """Return all rows of `bronze.changes`, in order."""
    rows = DeltaTable(f"{lake_path}/bronze/changes").to_pyarrow_dataset().to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["commit_lsn"], row["op"] != "snapshot", row["seq"]))


def assert_each_change_once(rows: Sequence[dict[str, Any]]) -> None:
    """Check that (commit_lsn, seq) of stream rows is unique and gapless, and that each transaction ends."""
    stream = [row for row in rows if not row["op"].startswith("snapshot")]
    places = [(row["commit_lsn"], row["seq"]) for row in stream]
    assert len(places) == len(set(places)), "a change is in bronze twice"
    transactions: dict[int, list[dict[str, Any]]] = {}
    for row in stream:
        transactions.setdefault(row["commit_lsn"], []).append(row)
    for lsn, changes in transactions.items():
        assert [row["seq"] for row in changes] == list(range(len(changes))), f"holes at {Lsn(lsn)}"
        assert [row["end_of_tx"] for row in changes] == [False] * (len(changes) - 1) + [True]


def replay(
    lake_path: str,
    table: TableName,
    changes: Sequence[dict[str, Any]],
    shapes: Sequence[Relation] | None = None,
) -> list[Row]:
    """Return the rows of a table after bronze's changes; read the shapes unless the caller passes them."""
    rows = [row for row in changes if (row["table_schema"], row["table_name"]) == (table.schema, table.name)]
    shapes = read_relations(Lake(lake_path)) if shapes is None else shapes
    key = next(shape.key for shape in reversed(shapes) if shape.table == table)
    ends = [row["commit_lsn"] for row in rows if row["op"] == "snapshot_end"]
    assert ends, f"no complete snapshot of {table}"
    snapshot_lsn = max(ends)
    state: dict[tuple[str | None, ...], Row] = {}
    for row in rows:
        new = _named(row, row["new"])
        if row["op"] == "snapshot":
            if row["commit_lsn"] == snapshot_lsn:
                assert new is not None
                identity = tuple(new[column] for column in key)
                assert identity not in state, "a row is in the snapshot twice"
                state[identity] = new
        elif row["commit_lsn"] > snapshot_lsn:
            _apply(state, row, new, key)
    return list(state.values())


def _apply(
    state: dict[tuple[str | None, ...], Row], row: dict[str, Any], new: Row | None, key: tuple[str, ...]
) -> None:
    if row["op"] == "truncate":
        state.clear()
        return
    old = _named(row, row["old"])
    before = None
    if row["op"] in ("update", "delete"):
        identity = old if old is not None else new
        assert identity is not None
        before = state.pop(tuple(identity[column] for column in key))
    if new is not None:
        for column in row["unchanged"] or ():
            assert before is not None
            new[column] = before[column]
        state[tuple(new[column] for column in key)] = new


def _named(row: dict[str, Any], values: list[str | None] | None) -> Row | None:
    return None if values is None else dict(zip(row["columns"], values, strict=True))


def source_rows(
    source: SourceSettings, table: TableName, session: psycopg.Connection[Any] | None = None
) -> list[Row]:
    """Return the rows of a table as PostgreSQL prints them, without rows of inheriting tables."""
    with nullcontext(session) if session is not None else connect(source) as connection:
        row = connection.execute(
            "SELECT relkind FROM pg_class WHERE oid = %s::regclass", [table.quoted]
        ).fetchone()
        only = "" if row == ("p",) else "ONLY "
        columns = [
            row[0]
            for row in connection.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
                "AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
                [table.quoted],
            )
        ]
        names = ", ".join(quote_identifier(column) for column in columns)
        result = connection.pgconn.exec_(f"SELECT {names} FROM {only}{table.quoted}".encode())
        return [
            {
                column: None if (value := result.get_value(row, at)) is None else value.decode()
                for at, column in enumerate(columns)
            }
            for row in range(result.ntuples)
        ]


def added_defaults(connection: psycopg.Connection[Any], table: TableName) -> Row:
    """Return the defaults of added columns: PostgreSQL fills older rows with them and sends no event."""
    rows = connection.execute(
        "SELECT attname, (attmissingval::text::text[])[1] FROM pg_attribute "
        "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND atthasmissing",
        [table.quoted],
    )
    return dict(rows.fetchall())


def assert_bronze_equals_source(
    source: SourceSettings,
    lake_path: str,
    *tables: str,
    changes: Sequence[dict[str, Any]] | None = None,
    shapes: Sequence[Relation] | None = None,
    session: psycopg.Connection[Any] | None = None,
) -> None:
    """Compare every table, folded from bronze, with PostgreSQL; read bronze unless rows are passed."""
    changes = bronze_rows(lake_path) if changes is None else changes
    with nullcontext(session) if session is not None else connect(source) as connection:
        for name in tables:
            table = TableName.parse(name)
            defaults = added_defaults(connection, table)
            folded = [{**defaults, **row} for row in replay(lake_path, table, changes, shapes)]
            expected = source_rows(source, table, connection)
            assert sorted(folded, key=_spelling) == sorted(expected, key=_spelling), name


def _spelling(row: Row) -> str:
    return repr(sorted(row.items()))
