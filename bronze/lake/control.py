"""The control tables: which versions make a cut, what went wrong, what each cycle did.

They lie in `control.*` of the lake and are small, append-mostly Delta tables. Every layer writes them, so
they are defined in the lowest one. Appends go through `deltalake` (about 10 ms, no JVM).

A cut is recorded by one commit for all tables of a layer, after every table's own commit. A crash in between
leaves the tables ahead of the newest cut, never a cut that names a version which is not there.
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
    """A table as a record of a cut names it.

    Attributes:
        commit_lsn: of the cut.
        version: of the table.
        mark: of that version; None where the record states none, as one of an earlier release.
        seen: of a cut of gold, as `Cut.seen`.
    """

    commit_lsn: Lsn
    version: int
    mark: Lsn | None
    seen: datetime | None = field(default=None, compare=False)


def is_put_back(version: int, mark: Lsn | None, named: Named) -> bool:
    """Check whether a table, found at a version with a mark, lacks what a cut found in it."""
    return version < named.version or (named.mark is not None and (mark is None or mark < named.mark))


@dataclass(frozen=True, slots=True)
class Cut:
    """Versions of all tables of a layer that together hold exactly the state as of `commit_lsn`.

    Attributes:
        tables: table (or document) name within the layer, to its Delta version.
        recorded_at: when it was recorded. Of several records of one LSN the newest counts, so a later record
            has a later moment, whatever the clock of its machine says (`ControlTables.record_cut`).
        marks: table name to the mark of that version: the LSN of the newest window in it. A version is a
            number that another history of the table has too; a mark says which rows the version has.
        ids: table name to a number made of the table's Delta id; a table that is made anew has another id.
        built_from: of a cut of gold: `recorded_at` of the record of silver's cut that it was built from.
    """

    layer: Layer
    commit_lsn: Lsn
    commit_ts: datetime | None
    tables: dict[str, int]
    recorded_at: datetime | None = None
    marks: dict[str, Lsn] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    built_from: datetime | None = None

    @property
    def seen(self) -> datetime | None:
        """Return the moment up to which records of silver's cut count, of a cut of gold.

        An earlier version did not say what it was built from: there the moment of its own record decides.
        """
        return self.built_from or self.recorded_at

    def named(self, name: str) -> Named | None:
        """Return what it states of a table; None where it does not name the table."""
        version = self.tables.get(name)
        if version is None:
            return None
        return Named(self.commit_lsn, version, self.marks.get(name), self.seen)


@dataclass(frozen=True, slots=True)
class OpenError:
    """An error that has not healed; a row of `control.errors` whose `closed_at` is NULL."""

    scope: ErrorScope
    name: str
    code: str
    message: str
    remedy: str | None = None
    commit_lsn: Lsn | None = None
    opened_at: datetime | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells one error from another: scope, name and code."""
        return (self.scope, self.name, self.code)


@dataclass(slots=True)
class Run:
    """One cycle of one table or document; a row of `control.runs`.

    Attributes:
        mode: ``incremental``, ``full``, ``snapshot`` or ``none``; `reason` says why a full one was needed.
        details: anything a layer wants to tell (fan-out, files read, roots whose `one` matched several rows),
            as JSON.
    """

    layer: Layer
    name: str
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
    details: dict[str, object] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def row(self) -> dict[str, object]:
        """The row as Arrow takes it."""
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
