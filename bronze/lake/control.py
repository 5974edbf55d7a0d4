"""Rows of the control tables: the versions of each cut, the errors, the work of each cycle.

The tables `control.*` of the lake are small Delta tables; most writes are appends. Every layer writes control
tables, so the lowest layer defines the tables. Appends use `deltalake` (about 10 ms, no JVM).

One commit records a cut for all tables of a layer, after each table's own commit. After a crash in between,
the tables are ahead of the newest cut; no cut ever names a missing version.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.bronze.lsn import Lsn

ErrorScope: TypeAlias = Literal["pipeline", "table", "document"]

_TIME: Final = pa.timestamp("us", tz="UTC")

CUTS_SCHEMA: Final = pa.schema(
    [
        pa.field("commit_lsn", pa.int64()),
        pa.field("commit_ts", _TIME),
        pa.field("layer", pa.string()),
        pa.field("table_name", pa.string()),
        pa.field("delta_version", pa.int64()),
        pa.field("recorded_at", _TIME),
        pa.field("mark_lsn", pa.int64()),
        pa.field("built_from", _TIME),
        pa.field("table_id", pa.int64()),
    ]
)

ERRORS_SCHEMA: Final = pa.schema(
    [
        pa.field("opened_at", _TIME),
        pa.field("closed_at", _TIME),
        pa.field("scope", pa.string()),
        pa.field("name", pa.string()),
        pa.field("commit_lsn", pa.int64()),
        pa.field("code", pa.string()),
        pa.field("message", pa.string()),
        pa.field("remedy", pa.string()),
    ]
)

RUNS_SCHEMA: Final = pa.schema(
    [
        pa.field("run_id", pa.string()),
        pa.field("layer", pa.string()),
        pa.field("name", pa.string()),
        pa.field("mode", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("from_lsn", pa.int64()),
        pa.field("to_lsn", pa.int64()),
        pa.field("delta_version", pa.int64()),
        pa.field("changes", pa.int64()),
        pa.field("inserts", pa.int64()),
        pa.field("updates", pa.int64()),
        pa.field("deletes", pa.int64()),
        pa.field("started_at", _TIME),
        pa.field("seconds", pa.float64()),
        pa.field("details", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Named:
    """A table as a cut's record names it."""

    # LSN that the cut records
    commit_lsn: Lsn
    # Delta version of the table
    version: int
    # mark of this version; None if the record has no mark, as in earlier releases
    mark: Lsn | None
    # for a cut of gold, the value of `Cut.seen`
    seen: datetime | None = field(default=None, compare=False)


def is_put_back(version: int, mark: Lsn | None, named: Named) -> bool:
    """Check whether a table was rolled back: its version or mark is older than a cut's record."""
    return version < named.version or (named.mark is not None and (mark is None or mark < named.mark))


@dataclass(frozen=True, slots=True)
class Cut:
    """Versions of all tables of a layer that together hold exactly the state as of `commit_lsn`."""

    layer: Layer
    commit_lsn: Lsn
    commit_ts: datetime | None
    # Delta version by the name of the table (or document) within the layer
    tables: dict[str, int]
    # Of several records of one LSN the newest counts. A later record therefore gets a later time, whatever
    # its machine's clock shows (`ControlTables.record_cut`).
    recorded_at: datetime | None = None
    # by table name: the LSN of the newest window in the version. After a rollback a table reuses version
    # numbers; a mark identifies the rows of a version.
    marks: dict[str, Lsn] = field(default_factory=dict)
    # number derived from the Delta id, by table name; a recreated table has a different id
    ids: dict[str, int] = field(default_factory=dict)
    # for a cut of gold: `recorded_at` of the silver record from which gold built the cut
    built_from: datetime | None = None

    @property
    def seen(self) -> datetime | None:
        """For a cut of gold: the time up to which records of silver's cut count."""
        # Earlier releases recorded no `built_from`; for their cuts the time of the cut's own record decides.
        return self.built_from or self.recorded_at

    def identity(self, name: str) -> tuple[int, int, Lsn] | None:
        """Return what identifies a table's rows: version, id and mark; None if the cut lacks one of these."""
        version, table_id, mark = self.tables.get(name), self.ids.get(name), self.marks.get(name)
        if version is None or table_id is None or mark is None:
            return None
        return version, table_id, mark

    def named(self, name: str) -> Named | None:
        """Return the record of a table; None if the cut does not name the table."""
        version = self.tables.get(name)
        if version is None:
            return None
        return Named(self.commit_lsn, version, self.marks.get(name), self.seen)


@dataclass(frozen=True, slots=True)
class OpenError:
    """An open error; a row of `control.errors` whose `closed_at` is NULL."""

    scope: ErrorScope
    name: str
    code: str
    message: str
    remedy: str | None = None
    commit_lsn: Lsn | None = None
    opened_at: datetime | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Identity of an error: scope, name and code."""
        return (self.scope, self.name, self.code)


@dataclass(slots=True)
class Run:
    """One cycle of one table or document; a row of `control.runs`."""

    layer: Layer
    name: str
    # `incremental`, `full`, `snapshot` or `none`; `reason` explains why a full run was needed
    mode: str
    from_lsn: Lsn | None
    to_lsn: Lsn | None
    reason: str | None = None
    delta_version: int | None = None
    changes: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0
    # further facts of a layer as JSON (fan-out, files read, roots whose `one` matched several rows)
    details: dict[str, object] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def row(self) -> dict[str, object]:
        """Return the row for Arrow."""
        return {
            "run_id": self.run_id,
            "layer": self.layer,
            "name": self.name,
            "mode": self.mode,
            "reason": self.reason,
            "from_lsn": self.from_lsn,
            "to_lsn": self.to_lsn,
            "delta_version": self.delta_version,
            "changes": self.changes,
            "inserts": self.inserts,
            "updates": self.updates,
            "deletes": self.deletes,
            "started_at": self.started_at,
            "seconds": self.seconds,
            "details": json.dumps(self.details) if self.details else None,
        }
