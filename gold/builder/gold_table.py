"""Read a document's table from its Delta log: the mark, the files, the rows of the last commit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.cached_table import CachedTable
from deltasmelt.bronze.lake.foreign_commits import ForeignCommit, first_foreign
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.gold.builder.spark_settings import GOLD_APP
from deltasmelt.gold.compile.query import KEY
from deltasmelt.gold.incremental.starts import holds_the_same
from deltasmelt.silver.run.writer import Writer
from deltasmelt.silver.schema.clustering import INDEXED_COLUMNS
from deltasmelt.silver.schema.fields import ddl_of
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table

DEFINITION_PROPERTY: Final = "deltasmelt.definition"

_SMALL_BYTES: Final = 32_000_000
_SMALL_ROWS: Final = 50_000
"""Limits of reads planned for little data: of all silver tables of a document, or of its gold table."""


@dataclass(frozen=True, slots=True)
class TableState:
    """The state that a gold table's log records."""

    version: int
    position: Lsn | None  # LSN of the cut that the table holds
    definition: str | None  # digest of the definition; None while a build by a new definition runs
    columns: frozenset[str]  # quoted names of the columns, and of the fields of the column `KEY`


class GoldTable:
    """One document's table.

    `address` is the table's name in SQL, `known` the state that `state` returned last.
    """

    def __init__(self, lake: Lake, name: str) -> None:
        self.name = name
        self.writer = Writer(lake, "gold")
        self.address = lake.sql("gold", name)
        self.uri = lake.uri("gold", name)
        self._cached = CachedTable(self.uri, writes=True)
        self.known: TableState | None = None
        self._known_of: Table | None = None

    def state(self) -> TableState | None:
        """Return the table's present state; None if the table does not exist.

        Raises:
            DefiniteError: ``catalog-name-taken``: gold did not create the catalog's table.
        """
        self.known = None
        table = self._open()
        if table is None:
            return None
        table.require_ours(DEFINITION_PROPERTY)
        position = table.transaction_version(GOLD_APP)
        fields = _leaves(table)
        columns = {quote(name) for name in fields}
        columns |= {quote(KEY, inner) for inner in fields.get(KEY, ())}
        definition = table.metadata().configuration.get(DEFINITION_PROPERTY) or None
        position = None if position is None else Lsn(position)
        self.known = TableState(table.version(), position, definition, frozenset(columns))
        self._known_of = table
        return self.known

    def is_at(self, state: TableState) -> bool:
        """Check whether a state that `state` returned is still the table's: one poll of the log."""
        table = self._open()
        return (
            table is not None
            and table is self._known_of  # another handle: a recreated table may have as many versions
            and self.known == state
            and table.version() == state.version
        )

    def version(self) -> int | None:
        """Return the table's newest version; None if the table does not exist."""
        table = self._open()
        return None if table is None else table.version()

    def is_as_of(self, since: int, until: int) -> bool:
        """Check whether the table holds the same documents at two versions."""
        return holds_the_same(self.uri, since, until)

    def foreign(self, version: int, since: int) -> ForeignCommit | None:
        """Return the first commit of a foreign writer that changed documents; None without one.

        The search ends at `version`; `since` is a correct version, as a cut names it.
        """
        if since >= version:
            return None
        return first_foreign(range(version, since, -1), self._last().commits(version - since))

    def files(self) -> pa.Table:
        """Return the table's data files with their statistics."""
        return pa.table(self._opened().get_add_actions(flatten=True))

    def types(self) -> dict[str, str]:
        """Return the SQL type of each column, in the table's order."""
        schema = json.loads(self._opened().schema().to_json())
        return {field["name"]: ddl_of(field["type"]) for field in schema["fields"]}

    def file_count(self) -> int:
        """Return the number of files at the last read; `files` has one row for a catalog's table."""
        return self._cached.file_count()

    def state_marks(self) -> None:
        """Write a catalog's mark again when the mark is due (`bronze.lake.table.Table.state_marks`)."""
        table = self._open()
        if table is not None:
            table.state_marks()

    def has_statistics(self, key: Sequence[str]) -> bool:
        """Check whether files have statistics of the key; Delta collects them for the schema's first leaves.

        A struct in a struct counts as one leaf. So this check may include a key without statistics by
        mistake. Spark then refuses to cluster the table, and the build continues without clustering.
        """
        first: list[str] = []
        for name, inner in _leaves(self._opened()).items():
            first += [quote(name, one) for one in inner] or [quote(name)]
        return set(key) <= set(first[:INDEXED_COLUMNS])

    def rows_written(self) -> int:
        """Return the rows that the newest commit wrote, or the commit before if the newest wrote none."""
        table = self._open()
        entries = [] if table is None else table.history(2)
        told = (entry.get("operationMetrics") or {} for entry in entries)
        return next((int(one["numOutputRows"]) for one in told if "numOutputRows" in one), 0)

    def _open(self) -> Table | None:
        """Return the table at its newest version."""
        # Sure: a build continues from this version, so it must exist.
        return self._cached.newest(sure=True)

    def _last(self) -> Table:
        """Return the handle of the last read."""
        return self._cached.table or self._opened()

    def _opened(self) -> Table:
        table = self._open()
        if table is None:
            raise RuntimeError(f"{self.address} was written but does not exist")
        return table


def _leaves(table: Table) -> dict[str, tuple[str, ...]]:
    """Return a table's columns in order, each with the fields of its struct, if the column is a struct."""
    found = {}
    for field in json.loads(table.schema().to_json())["fields"]:
        inner = field["type"].get("fields", ()) if isinstance(field["type"], dict) else ()
        found[field["name"]] = tuple(one["name"] for one in inner)
    return found


def definition_at(uri: str, version: int) -> str | None:
    """Return the digest that a gold table names at a version; None if the table names none, or if unknown.

    Raises:
        DeltaError: the version is no longer readable.
    """
    table = delta.open_at(uri, version)
    if not table.shows_files:
        # SQL shows only the present properties of a catalog's table. These equal the older version's if no
        # later commit set properties.
        newest = delta.open_existing(uri)
        later = newest.history(newest.version() - version) if newest.version() > version else []
        if any(entry.get("operation") == "SET TBLPROPERTIES" for entry in later):
            return None
    found = table.metadata().configuration.get(DEFINITION_PROPERTY)
    return str(found) if found else None


def size_of(files: pa.Table) -> tuple[int, int]:
    """Return the rows and bytes of a table's files."""
    return pc.sum(files["num_records"]).as_py() or 0, pc.sum(files["size_bytes"]).as_py() or 0


def is_small(sizes: Iterable[tuple[int, int]]) -> bool:
    """Check whether Spark reads tables of these sizes faster than Spark compiles code for reading."""
    known = list(sizes)
    return sum(rows for rows, _ in known) <= _SMALL_ROWS and sum(size for _, size in known) <= _SMALL_BYTES
