"""`control.storage`: what looks at the catalog saw of each table's storage (`bronze.drift.looks`).

The order of the writers makes it right. A copy records first what was seen *before* it took its locks, then
commits its rows; a crash in between leaves a table that still needs its copy. A look that finds a reason for
a new snapshot makes the resnapshot mark durable and records nothing, so that the reason stays until the copy.
A look that finds a harmless difference records it. So what is recorded is never newer than the rows.

A record that fails may be in the table all the same; it is not known here then and is recorded again, which
says the same twice. Each record is a file; the writer compacts them when they are many
(`bronze.lake.compaction`).
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from bronze.drift.looks import Looked
from bronze.identifiers import TableName
from bronze.lake import delta, disk
from bronze.lake.compaction import COMPACT_ABOVE, compact
from bronze.lake.retention import RETENTION, tidy
from bronze.lake.torn_log import set_torn_aside

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from bronze.lsn import Lsn

STORAGE: Final = "storage"

_SCHEMA: Final = pa.schema(
    [
        pa.field("table_schema", pa.string()),
        pa.field("table_name", pa.string()),
        pa.field("recorded_at", pa.timestamp("us", tz="UTC")),
        pa.field("storage", pa.string()),
    ]
)


class StorageLog:
    """What is known of each table. Safe to share between threads of one process.

    Threads: the copies' threads and the reader's record, they and the session ask (`known`), the session's
    writer runs `tidy`. `_lock` is held around `_table` and around every change of `_known`. `known` takes no
    lock, so that the stream does not wait for a record: one look into a dict cannot be torn.

    Args:
        uri: location of the table, which is made when something is recorded first.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._lock = threading.Lock()
        set_torn_aside(uri)
        self._table: DeltaTable | None = delta.open_table(uri)
        self._known: dict[TableName, Looked] = {}
        if self._table is not None:
            disk.flush_log(uri, self._table.version())
            files = [delta.read_file(self._table, path) for path in delta.paths_of(self._table)]
            rows = pa.concat_tables([_SCHEMA.empty_table(), *files])
            for row in delta.sorted_by(rows, "recorded_at").to_pylist():
                table = TableName(row["table_schema"], row["table_name"])
                self._known[table] = Looked.from_json(row["storage"])

    def known(self, table: TableName) -> Looked | None:
        """What was recorded last; None where nothing was."""
        return self._known.get(table)

    def settles(self, before: Lsn, frontier: Lsn) -> bool:
        """Whether a look is worth while, since the stream came from one place to another."""
        return any(looked.settles(before, frontier) for looked in list(self._known.values()))

    def record(self, seen: dict[TableName, Looked]) -> None:
        """Make durable what was seen, where it says something new."""
        with self._lock:
            new = {table: looked for table, looked in seen.items() if self._known.get(table) != looked}
            if not new:
                return
            if self._table is None:
                self._table = delta.open_or_create(
                    self._uri,
                    _SCHEMA,
                    description="What the catalog said of each table's storage",
                    properties={
                        "delta.checkpointInterval": str(delta.checkpoint_interval(self._uri)),
                        **RETENTION,
                    },
                )
            now = datetime.now(UTC)
            rows = [
                {
                    "table_schema": table.schema,
                    "table_name": table.name,
                    "recorded_at": now,
                    "storage": looked.to_json(),
                }
                for table, looked in new.items()
            ]
            delta.append(self._table, pa.Table.from_pylist(rows, schema=_SCHEMA))
            self._known.update(new)
            if len(self._table.file_uris()) > COMPACT_ABOVE:
                compact(self._table, _SCHEMA, many=COMPACT_ABOVE // 2)

    def tidy(self) -> None:
        """Remove log entries and joined files that are past their time."""
        with self._lock:
            if self._table is not None:
                tidy(self._table)
