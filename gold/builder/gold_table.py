"""A document's table as its Delta log shows it: its mark, its files, what was written last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.schema import StructType

from bronze.lake import delta
from bronze.lake.history import history
from bronze.lake.transactions import transaction_version
from bronze.lsn import Lsn
from gold.builder.spark_settings import GOLD_APP
from gold.compile.query import KEY
from gold.incremental.starts import holds_the_same
from silver.schema.clustering import INDEXED_COLUMNS
from silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bronze.lake.location import Lake

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
        definition: digest that it was built by.
        columns: its columns, and the fields of the column `KEY`, as they are written in SQL.
    """

    version: int
    position: Lsn | None
    definition: str | None
    columns: frozenset[str]


class GoldTable:
    """One document's table.

    Attributes:
        lake: where it lies.
        address: as SQL names it.
        uri: its location.
    """

    def __init__(self, lake: Lake, name: str) -> None:
        self.lake = lake
        self.address = lake.sql("gold", name)
        self.uri = delta.location(lake, "gold", name)

    def state(self) -> TableState | None:
        """The table as it is now; None where there is none."""
        table = delta.open_table(self.uri)
        if table is None:
            return None
        position = transaction_version(table, GOLD_APP)
        fields = table.schema().fields
        columns = {quote(field.name) for field in fields}
        for field in fields:
            if field.name == KEY and isinstance(field.type, StructType):
                columns |= {quote(KEY, inner.name) for inner in field.type.fields}
        definition = table.metadata().configuration.get(DEFINITION_PROPERTY)
        position = None if position is None else Lsn(position)
        return TableState(table.version(), position, definition, frozenset(columns))

    def version(self) -> int | None:
        """Its newest version; None where there is no table."""
        table = delta.open_table(self.uri)
        return None if table is None else table.version()

    def is_as_of(self, since: int, until: int) -> bool:
        """Whether it holds the same documents at two versions."""
        return holds_the_same(self.uri, since, until)

    def files(self) -> pa.Table:
        """Its data files with their statistics."""
        return pa.table(delta.open_existing(self.uri).get_add_actions(flatten=True))

    def has_statistics(self, key: Sequence[str]) -> bool:
        """Whether files have statistics of columns: Delta keeps them of the first leaves of the schema.

        A struct in a struct is counted as one leaf here. So a key may be taken for one of them by mistake;
        then the table cannot be clustered by it, which is no error.

        Args:
            key: as SQL names them.
        """
        first: list[str] = []
        for field in delta.open_existing(self.uri).schema().fields:
            inner = field.type.fields if isinstance(field.type, StructType) else []
            first += [quote(field.name, one.name) for one in inner] or [quote(field.name)]
        return set(key) <= set(first[:INDEXED_COLUMNS])

    def rows_written(self) -> int:
        """Rows that the last commit wrote."""
        table = delta.open_table(self.uri)
        entries = [] if table is None else history(table, 1)
        return int(entries[0].get("operationMetrics", {}).get("numOutputRows", 0)) if entries else 0


def size_of(files: pa.Table) -> tuple[int, int]:
    """Rows and bytes of a table's files."""
    return pc.sum(files["num_records"]).as_py() or 0, pc.sum(files["size_bytes"]).as_py() or 0


def is_small(sizes: Iterable[tuple[int, int]]) -> bool:
    """Whether tables of these rows and bytes are read faster than code for reading them is compiled."""
    known = list(sizes)
    return sum(rows for rows, _ in known) <= _SMALL_ROWS and sum(size for _, size in known) <= _SMALL_BYTES
