"""A document's table as its Delta log shows it: its mark, its files, what was written last."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.catalog.sql import require_ours
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.foreign_commits import (
    ForeignCommit,
    commits_of,
    first_foreign,
    history,
)
from deltasmelt.bronze.lake.place import place_of
from deltasmelt.bronze.lake.torn_log import set_torn_aside
from deltasmelt.bronze.lake.transactions import transaction_version
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

    from deltalake import DeltaTable

    from deltasmelt.bronze.lake.location import Lake

DEFINITION_PROPERTY: Final = "deltasmelt.definition"

_SMALL_BYTES: Final = 32_000_000
_SMALL_ROWS: Final = 50_000
"""Size of all silver tables of a document, or of its own, up to which reads are planned for little data."""


@dataclass(frozen=True, slots=True)
class TableState:
    """What a gold table says of itself.

    Attributes:
        version: of the table.
        position: LSN of the cut it holds.
        definition: digest that it was built by; None while a build by another one is under way.
        columns: its columns, and the fields of the column `KEY`, as they are written in SQL.
    """

    version: int
    position: Lsn | None
    definition: str | None
    columns: frozenset[str]


class GoldTable:
    """One document's table.

    Attributes:
        name: of the document.
        writer: runs the statements that write it.
        address: as SQL names it.
        uri: its location.
        known: the newest state that was asked for.
    """

    def __init__(self, lake: Lake, name: str) -> None:
        self.name = name
        self.writer = Writer(lake, "gold")
        self.address = lake.sql("gold", name)
        self.uri = delta.location(lake, "gold", name)
        self._kept: DeltaTable | None = None
        self._is_whole = False
        self.known: TableState | None = None

    def state(self) -> TableState | None:
        """The table as it is now; None where there is none.

        Raises:
            DefiniteError: ``catalog-name-taken``: it is none of this pipeline's.
        """
        self.known = None
        table = self._open()
        if table is None:
            return None
        require_ours(self.uri, table.metadata().configuration, DEFINITION_PROPERTY)
        position = transaction_version(table, GOLD_APP)
        fields = _leaves(table)
        columns = {quote(name) for name in fields}
        columns |= {quote(KEY, inner) for inner in fields.get(KEY, ())}
        definition = table.metadata().configuration.get(DEFINITION_PROPERTY) or None
        position = None if position is None else Lsn(position)
        self.known = TableState(table.version(), position, definition, frozenset(columns))
        return self.known

    def version(self) -> int | None:
        """Its newest version; None where there is no table."""
        table = self._open()
        return None if table is None else table.version()

    def is_as_of(self, since: int, until: int) -> bool:
        """Whether it holds the same documents at two versions."""
        return holds_the_same(self.uri, since, until)

    def foreign(self, version: int, since: int) -> ForeignCommit | None:
        """Return the first commit by others that changed documents; None where there is none.

        Args:
            version: the table's newest.
            since: one that is known to be right, as a cut names it.
        """
        if since >= version:
            return None
        commits = commits_of(self.uri, self._opened, version - since)
        return first_foreign(range(version, since, -1), commits)

    def files(self) -> pa.Table:
        """Its data files with their statistics."""
        return pa.table(self._opened().get_add_actions(flatten=True))

    def types(self) -> dict[str, str]:
        """The type of each column, as SQL names it; in their order."""
        schema = json.loads(self._opened().schema().to_json())
        return {field["name"]: ddl_of(field["type"]) for field in schema["fields"]}

    def number_of(self, files: pa.Table) -> int:
        """How many files these are; of a catalog's table they are one row (`bronze.lake.catalog.table`)."""
        if not place_of(self.uri).needs_session:
            return int(files.num_rows)
        return len(self._opened().file_uris())

    def state_marks(self) -> None:
        """Have a catalog's table say its mark again where that is due (`bronze.lake.delta.state_marks`)."""
        table = self._open()
        if table is not None:
            delta.state_marks(table)

    def has_statistics(self, key: Sequence[str]) -> bool:
        """Whether files have statistics of columns: Delta keeps them of the first leaves of the schema.

        A struct in a struct is counted as one leaf here. So a key may be taken for one of them by mistake;
        then the table cannot be clustered by it, which is no error.

        Args:
            key: as SQL names them.
        """
        first: list[str] = []
        for name, inner in _leaves(self._opened()).items():
            first += [quote(name, one) for one in inner] or [quote(name)]
        return set(key) <= set(first[:INDEXED_COLUMNS])

    def rows_written(self) -> int:
        """Rows that the newest commit wrote, or the one before it if that wrote none."""
        table = self._open()
        entries = [] if table is None else history(table, 2)
        told = (entry.get("operationMetrics") or {} for entry in entries)
        return next((int(one["numOutputRows"]) for one in told if "numOutputRows" in one), 0)

    def _open(self) -> DeltaTable | None:
        """The table at its newest version; a catalog's is kept, for each thing known of it is a statement."""
        if not place_of(self.uri).needs_session:
            if not self._is_whole:
                set_torn_aside(self.uri, thorough=False)
                self._is_whole = True
            return delta.open_table(self.uri)
        if self._kept is not None:
            try:
                delta.refresh(self._kept)
            except DeltaError:  # it was removed, and perhaps made anew
                self._kept = None
        self._kept = self._kept or delta.open_table(self.uri)
        return self._kept

    def _opened(self) -> DeltaTable:
        table = self._open()
        if table is None:
            raise RuntimeError(f"{self.address} was written but is not there")
        return table


def _leaves(table: DeltaTable) -> dict[str, tuple[str, ...]]:
    """The columns of a table, in their order, each with the fields of its struct, if it is one."""
    found = {}
    for field in json.loads(table.schema().to_json())["fields"]:
        inner = field["type"].get("fields", ()) if isinstance(field["type"], dict) else ()
        found[field["name"]] = tuple(one["name"] for one in inner)
    return found


def definition_at(uri: str, version: int) -> str | None:
    """The digest that a gold table names at a version; None where it names none, or that is not known.

    Of a catalog's table SQL tells its properties of now alone. They are those of an older version where none
    was set since.

    Raises:
        DeltaError: the version is no longer readable.
    """
    table = delta.open_at(uri, version)
    if place_of(uri).needs_session:
        newest = delta.open_existing(uri)
        later = history(newest, newest.version() - version) if newest.version() > version else []
        if any(entry.get("operation") == "SET TBLPROPERTIES" for entry in later):
            return None
    found = table.metadata().configuration.get(DEFINITION_PROPERTY)
    return str(found) if found else None


def size_of(files: pa.Table) -> tuple[int, int]:
    """Rows and bytes of a table's files."""
    return pc.sum(files["num_records"]).as_py() or 0, pc.sum(files["size_bytes"]).as_py() or 0


def is_small(sizes: Iterable[tuple[int, int]]) -> bool:
    """Whether tables of these rows and bytes are read faster than code for reading them is compiled."""
    known = list(sizes)
    return sum(rows for rows, _ in known) <= _SMALL_ROWS and sum(size for _, size in known) <= _SMALL_BYTES
