"""A catalog's table at a version: its log, read through SQL.

`CatalogTable` reads no path, and requests each fact of a version once. A poll reads the newest commits
(``DESCRIBE HISTORY … LIMIT``), which usually contain every fact that callers need until the next poll.

**Marks.** Marks are read backwards from the newest commit, down to known entries or to a commit with all
marks (`bronze.lake.catalog.commit_marks`). If the history ends earlier, the table's property holds the older
marks. If log entries were removed that the property does not cover, the marks are lost, and an error reports
the loss.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.catalog import commit_marks, commits
from deltasmelt.bronze.lake.catalog.amend import amend
from deltasmelt.bronze.lake.catalog.files import append_written
from deltasmelt.bronze.lake.catalog.sql import MADE_PROPERTY, failures, require_ours, run
from deltasmelt.bronze.lake.client import CommitFailedError
from deltasmelt.bronze.lake.foreign_commits import Commit, restored
from deltasmelt.bronze.lake.location import address_of, literal, quoted
from deltasmelt.bronze.lake.place import layer_of
from deltasmelt.bronze.lake.table import Columns, Metadata, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltasmelt.bronze.lake.client import Transaction
    from deltasmelt.bronze.lake.table import Actions, Rows

# Number of commits in a poll's first read; usually one commit contains all marks.
_FIRST_LOOK: Final = 16
# Number of commits between two statements of all marks, so that a poll's first read finds all marks.
STATED_AFTER: Final = 12
# Age at which marks are restated after any newer commit: entries are removed by age.
_STATED_SECONDS: Final = 86_400.0
_MOST: Final = 100_000
# Log retention of a new table; the log holds the marks, which are restated long before.
_RETENTION: Final = "interval 30 days"
_ENTRY: Final = (
    "version", "unix_millis(timestamp) AS timestamp", "operation", "operationParameters", "operationMetrics",
    "userMetadata",
)  # fmt: skip
_TOKEN: Final = "@"  # noqa: S105 - of a name that stands for all rows, see `CatalogTable.get_add_actions`


class CatalogTable(Table):
    """A table at a version; methods that read marks may raise DefiniteError ``marks-gone``."""

    shows_files: ClassVar[bool] = False

    def __init__(self, uri: str, version: int | None = None) -> None:
        self._location = uri
        self._recent: list[dict[str, Any]] = []
        newest = self._newest()
        self._version = newest if version is None else version
        self._pinned = version is not None and version != newest
        self._marks: dict[str, int] | None = None
        self._marks_of = -1
        self._stated, self._stated_at = 0, 0.0

    @classmethod
    def make(cls, uri: str, schema: pa.Schema, description: str, properties: Mapping[str, str]) -> None:
        """Create a table with the property that proves ownership; do nothing if a table has the name."""
        whole = {**properties, MADE_PROPERTY: "true", "delta.logRetentionDuration": _RETENTION}
        perform(Effect.CREATE_TABLE, uri, lambda: commits.create(uri, schema, description, whole))

    @classmethod
    def overwrite(cls, uri: str, rows: pa.Table) -> None:
        """Replace all rows of a table in one commit; create an absent table."""
        # A separate statement creates the table: a kill before the overwrite leaves a table without rows.
        commits.create(uri, rows.schema, "", {MADE_PROPERTY: "true"})
        made = cls(uri)
        made.require_ours(MADE_PROPERTY)
        commits.overwrite(made, rows, {})

    @property
    def table_uri(self) -> str:
        """Location of the table, as from `Lake.uri`."""
        return self._location

    def require_ours(self, proof: str) -> None:
        """Reject a table without a property that only the pipeline's own CREATE sets."""
        require_ours(self.table_uri, self.metadata().configuration, proof)

    def version(self) -> int:
        """Return the version at which the table is open."""
        return self._version

    def has_lost(self, version: int) -> None:
        """Return None: only the newest version shows whether a table was rolled back."""

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

    def schema(self) -> Columns:
        """Return the columns at this version."""
        return self._schema

    def get_add_actions(self, *, flatten: bool = False) -> pa.Table:  # noqa: ARG002 - as deltalake has it
        """Return one artificial file for all rows of this version; only the catalog knows the real files."""
        # The size is the newest version's: SQL shows no older sizes.
        rows, size = self._rows, int(self._detail["sizeInBytes"] or 0)
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

    def row_count(self) -> int:
        """Return the number of rows of this version."""
        return self._rows

    def rows_after(self, column: str, value: int) -> tuple[int, int]:
        """Return rows with a larger value of a column, and the share of the newest version's bytes."""
        rows, size = self._counted(f"WHERE {column} > {int(value)}"), int(self._detail["sizeInBytes"] or 0)
        return rows, size * rows // max(self._rows, 1)

    def commits(self, limit: int) -> Callable[[int], Commit | None]:
        """Return a function that returns a version's commit from the history."""
        known = {row["version"]: row for row in self.history(limit)}
        return lambda version: restored(known.get(version))

    def committed_at(self, version: int) -> float | None:
        """Return the commit time of a version from the history."""
        rows = self.history(self.version() - version + 1)
        times = [float(row["timestamp"]) / 1000 for row in rows if row["version"] == version]
        return times[0] if times else None

    def state_marks(self) -> None:
        """Restate the marks if the newest commits do not contain all marks; a commit without rows."""
        # A history is limited, and opening a table first reads only a few commits. Restating is therefore due
        # after a few commits of any writer, and after a day.
        if self.is_unstated():
            with suppress(CommitFailedError):  # due again after the next commit
                perform(Effect.COMMIT, self.table_uri, self.create_checkpoint)
            self.refresh()

    def _write(self, actions: Actions, schema: pa.Schema, marks: Sequence[Transaction]) -> None:
        append_written(self, actions, schema, marks)

    def _add_columns(self, schema: pa.Schema) -> None:
        there = {column.name for column in pa.schema(self.schema())}
        commits.add_columns(self.table_uri, [field for field in schema if field.name not in there])

    def amend(self, changed: Rows, before: Rows) -> bool:
        """Change the rows in place (`bronze.lake.catalog.amend`)."""
        try:
            for path, rows in changed.items():
                amend(self.table_uri, before[path], rows)
        except CommitFailedError:
            return False
        finally:
            self.update_incremental()
        return True

    def _read(self, path: str, columns: list[str] | None) -> pa.Table:  # noqa: ARG002 - one path for all rows
        return self.rows(columns)

    def batches(
        self, columns: list[str], *, after: tuple[str, int] | None = None, ending: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield some columns of all rows in batches; one statement reads the rows."""
        column, value = after or ("", 0)
        wanted = ["true", *([f"{column} > {int(value)}"] if column else []), *([ending] if ending else [])]
        yield from self.rows(columns, condition=" AND ".join(wanted)).to_batches()

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
        """Return all rows of the version, or only rows for which an SQL condition is true."""
        listed = "*" if columns is None else ", ".join(map(quoted, columns))
        with failures(self.table_uri):
            text = f"SELECT {listed} FROM {{}} VERSION AS OF {self._version} WHERE {condition}"
            return run(self.table_uri, text).toArrow()

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
        for name in ("_detail", "_metadata", "_schema", "_rows"):
            self.__dict__.pop(name, None)

    def _entries(self, limit: int) -> list[dict[str, Any]]:
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
                f"the position of {address_of(self.table_uri)} is lost: its history begins at version "
                f"{oldest}, and its property {commit_marks.MARKS_PROPERTY} was not set since then",
                code="marks-gone",
                where=self.table_uri,
                remedy="see the page of this error; never shorten delta.logRetentionDuration of these tables",
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
        return Metadata(properties, detail["description"], detail["id"], detail["created"])

    @cached_property
    def _schema(self) -> Columns:
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - a lake of files needs no Spark

        with failures(self.table_uri):
            found = run(self.table_uri, f"SELECT * FROM {{}} VERSION AS OF {self._version} LIMIT 0").schema
        return Columns(json.dumps(found.jsonValue()), to_arrow_schema(found))

    @cached_property
    def _rows(self) -> int:
        return self._counted("")
