"""A catalog's table at a version: its log, read through SQL.

`CatalogTable` has the methods of `deltalake.DeltaTable` that the project uses. Code for reading logs
therefore need not know the kind of a table. The class reads no path, and requests each fact of a version
once.

A poll reads the newest commits (``DESCRIBE HISTORY … LIMIT``). The first commit is the newest version.
Usually the commits contain every fact that callers need until the next poll.

**Marks.** Marks are read backwards from the newest commit, down to known entries or to a commit with all
marks (`bronze.lake.catalog.commit_marks`). If the history ends earlier, the table's property holds the older
marks. If log entries were removed that the property does not cover, the marks are lost, and an error reports
the loss.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.catalog import commit_marks
from deltasmelt.bronze.lake.catalog.sql import failures, run
from deltasmelt.bronze.lake.location import address_of, literal, quoted
from deltasmelt.bronze.lake.place import layer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIRST_LOOK: Final = 16
"""Number of commits in a poll's first read; usually one commit contains all marks."""
STATED_AFTER: Final = 12
"""Number of commits between two statements of all marks, so that a poll's first read finds all marks."""
_STATED_SECONDS: Final = 86_400.0
"""Age at which marks are restated after any newer commit: entries are removed by age."""
_MOST: Final = 100_000
_ENTRY: Final = (
    "version", "unix_millis(timestamp) AS timestamp", "operation", "operationParameters", "operationMetrics",
    "userMetadata",
)  # fmt: skip
_TOKEN: Final = "@"  # noqa: S105 - of a name that stands for all rows, see `CatalogTable.get_add_actions`


@dataclass(frozen=True, slots=True)
class Metadata:
    """A table's metadata, as `deltalake.DeltaTable.metadata`; times in milliseconds since 1970."""

    configuration: dict[str, str]
    description: str | None
    partition_columns: list[str]
    id: str
    created_time: int | None


@dataclass(frozen=True, slots=True)
class Protocol:
    """A table's protocol, as `deltalake.DeltaTable.protocol`."""

    min_reader_version: int
    min_writer_version: int
    reader_features: list[str]
    writer_features: list[str]


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A table's columns: as Delta's JSON, and as Arrow (for ``pyarrow.schema``)."""

    text: str
    arrow: pa.Schema

    @property
    def fields(self) -> list[pa.Field]:
        """The columns; callers use only the names."""
        return list(self.arrow)

    def to_json(self) -> str:
        """Return the columns as Delta writes them into the log."""
        return self.text

    def __arrow_c_schema__(self) -> Any:
        """Return the schema through Arrow's interface between libraries."""
        return self.arrow.__arrow_c_schema__()


class CatalogTable:
    """A table at a version.

    Args:
        uri: location of the table (`bronze.lake.location`).
        version: version to open; None for the newest version.

    Attributes:
        table_uri: location of the table, as from `Lake.uri`.

    Raises:
        TableNotFoundError: the table does not exist.
        OSError: Spark cannot read the table.
        DefiniteError: ``marks-gone``, from methods that read marks.
    """

    def __init__(self, uri: str, version: int | None = None) -> None:
        self.table_uri = uri
        self._recent: list[dict[str, Any]] = []
        newest = self._newest()
        self._version = newest if version is None else version
        self._pinned = version is not None and version != newest
        self._marks: dict[str, int] | None = None
        self._marks_of = -1
        self._stated, self._stated_at = 0, 0.0

    def version(self) -> int:
        """Return the version at which the table is open."""
        return self._version

    def update_incremental(self) -> None:
        """Move the handle to the newest version."""
        newest = self._newest()
        if newest != self._version or self._pinned:
            self._version, self._pinned = newest, False
            self._forget()

    def transaction_version(self, app_id: str) -> int | None:
        """Return the mark of an application id at this version; None without a mark."""
        if self._marks is None or self._marks_of != self._version:
            self._marks, self._marks_of = self._read_marks(), self._version
        return self._marks.get(app_id)

    def is_unstated(self) -> bool:
        """Check whether the marks must be restated: after too many commits, or after too much time."""
        self.transaction_version("")
        since = self._version - self._stated
        return since >= STATED_AFTER or (since > 0 and time.time() - self._stated_at > _STATED_SECONDS)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the newest commits up to this version, newest first; times in milliseconds since 1970."""
        return self._entries(_MOST if limit is None else limit)

    def metadata(self) -> Metadata:
        """Return the table's current properties and description."""
        return self._metadata

    def protocol(self) -> Protocol:
        """Return the table's current protocol requirements for readers and writers."""
        detail = self._detail
        features = list(detail["tableFeatures"] or [])
        return Protocol(detail["minReaderVersion"], detail["minWriterVersion"], features, features)

    def schema(self) -> TableSchema:
        """Return the columns at this version."""
        return self._schema

    def get_add_actions(self, *, flatten: bool = False) -> pa.Table:  # noqa: ARG002 - as deltalake has it
        """Return one artificial file for all rows of this version; only the catalog knows the real files.

        The size in bytes is the newest version's: SQL shows no older sizes.
        """
        rows, size = self.rows_there, int(self._detail["sizeInBytes"] or 0)
        there = [] if not rows else [0]
        return pa.table(
            {
                "path": pa.array([f"{_TOKEN}{self._version}" for _ in there], pa.string()),
                "size_bytes": pa.array([size for _ in there], pa.int64()),
                "num_records": pa.array([rows for _ in there], pa.int64()),
            }
        )

    def file_uris(self) -> list[str]:
        """Return an artificial name for each data file."""
        return [f"{_TOKEN}{self._version}/{number}" for number in range(int(self._detail["numFiles"] or 0))]

    def cleanup_metadata(self) -> None:
        """Do nothing: Delta removes old log entries when Spark makes a checkpoint."""

    def vacuum(self, *_: object, **__: object) -> list[str]:
        """Do nothing: the catalog or `smelt maintain` runs ``VACUUM``."""
        return []

    def create_checkpoint(self) -> None:
        """Write all marks into the table's property."""
        self.transaction_version("")
        marks = {**(self._marks or {}), commit_marks.AS_OF: self._version}
        text = literal(json.dumps(marks, separators=(",", ":")))
        run(
            self.table_uri,
            f"ALTER TABLE {{}} SET TBLPROPERTIES ({literal(commit_marks.MARKS_PROPERTY)} = {text})",
        )

    def rows(self, columns: Sequence[str] | None = None, *, condition: str = "true") -> pa.Table:
        """Return all rows of the version, or only rows for which an SQL condition is true.

        Raises:
            OSError: Spark cannot read the rows.
        """
        listed = "*" if columns is None else ", ".join(map(quoted, columns))
        with failures(self.table_uri):
            text = f"SELECT {listed} FROM {{}} VERSION AS OF {self._version} WHERE {condition}"
            return run(self.table_uri, text).toArrow()

    def count(self, condition: str) -> int:
        """Return how many rows of this version fulfil an SQL condition.

        Raises:
            OSError: Spark cannot read the rows.
        """
        return self._counted(f"WHERE {condition}")

    def _counted(self, where: str) -> int:
        text = f"SELECT count(*) FROM {{}} VERSION AS OF {self._version} {where}"
        with failures(self.table_uri):
            row = run(self.table_uri, text).first()
        return 0 if row is None else int(row[0])

    def _newest(self) -> int:
        self._recent = self._described(_FIRST_LOOK)
        if not self._recent:
            raise OSError(f"{self.table_uri} has no history")
        return int(self._recent[0]["version"])

    def _forget(self) -> None:
        for name in ("_detail", "_metadata", "_schema", "rows_there"):
            self.__dict__.pop(name, None)

    def _entries(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest history rows up to this version."""
        known = [row for row in self._recent if row["version"] <= self._version]
        if len(known) >= limit or len(self._recent) < _FIRST_LOOK:
            return known[:limit]
        rows = self._described(limit)
        later = rows[0]["version"] - self._version if rows else 0
        if later > 0:  # newer commits filled the limit
            rows = self._described(limit + later)
        return [row for row in rows if row["version"] <= self._version][:limit]

    def _described(self, limit: int) -> list[dict[str, Any]]:
        with failures(self.table_uri):
            found = run(self.table_uri, f"DESCRIBE HISTORY {{}} LIMIT {limit}").selectExpr(*_ENTRY)
            return [row.asDict() for row in found.collect()]

    def _read_marks(self) -> dict[str, int]:
        """Return all marks at this version."""
        known, after = (self._marks or {}, self._marks_of) if self._marks_of < self._version else ({}, -1)
        if self._marks is not None and after >= 0:
            entries = self._entries(self._version - after)
            if len(entries) == self._version - after:
                return commit_marks.gone_on(self._told(entries), known)
        for limit in (_FIRST_LOOK, _MOST):
            entries = self._entries(limit)
            told = self._told(entries)
            ends = commit_marks.reaches_back(told) or bool(entries and entries[-1]["version"] == 0)
            if ends or len(entries) < limit:
                break
        return commit_marks.collected(told) if ends else self._marks_by_property(told)

    def _marks_by_property(self, told: Sequence[commit_marks.Said]) -> dict[str, int]:
        """Return all marks from the table's property if the history has lost its beginning."""
        properties = self.metadata().configuration
        newest = self._described(1)[0]["version"] == self._version  # read after the properties
        found = commit_marks.gone_on_from_property(told, properties, self._version, newest=newest)
        # Without this error the table would appear to have no marks, and would be filled again.
        if found is None:
            oldest = told[-1].version if told else self._version + 1
            raise DefiniteError(
                f"{address_of(self.table_uri)} no longer says how far it is: its history begins at version "
                f"{oldest}, and its property {commit_marks.MARKS_PROPERTY} was not set since",
                code="marks-gone",
                where=self.table_uri,
                remedy="see the error's page; let nobody shorten delta.logRetentionDuration of these tables",
            )
        return found

    def _told(self, entries: Sequence[dict[str, Any]]) -> list[commit_marks.Said]:
        """Return the marks of history rows, newest first; record where the property was set."""
        app = f"deltasmelt.{layer_of(self.table_uri)}"  # the id whose MERGEs have marks in their conditions
        told = [commit_marks.read(entry, app=app) for entry in entries]
        newest = next((at for at, one in enumerate(told) if one.complete), None)
        if newest is not None and told[newest].version > self._stated:
            self._stated, self._stated_at = told[newest].version, entries[newest]["timestamp"] / 1000
        elif not self._stated_at and entries and entries[-1]["version"] == 0:
            self._stated_at = entries[-1]["timestamp"] / 1000  # a new table has no older marks
        return told

    @cached_property
    def _detail(self) -> dict[str, Any]:
        with failures(self.table_uri):
            found = run(self.table_uri, "DESCRIBE DETAIL {}")
            row = found.selectExpr("*", "unix_millis(createdAt) AS created").first()
        return {} if row is None else row.asDict()

    @cached_property
    def _metadata(self) -> Metadata:
        detail = self._detail
        properties = dict(detail["properties"] or {})
        return Metadata(
            properties,
            detail["description"],
            list(detail["partitionColumns"] or []),
            detail["id"],
            detail["created"],
        )

    @cached_property
    def _schema(self) -> TableSchema:
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - a lake of files needs no Spark

        with failures(self.table_uri):
            found = run(self.table_uri, f"SELECT * FROM {{}} VERSION AS OF {self._version} LIMIT 0").schema
        return TableSchema(json.dumps(found.jsonValue()), to_arrow_schema(found))

    @cached_property
    def rows_there(self) -> int:
        """Number of rows of this version."""
        return self._counted("")
