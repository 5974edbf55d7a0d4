"""A real server, its reader and silver, and a comparison of both sides: every value as text, by name.

Many tables, each with a separate history, share one database and one run. Two statements then compare all
tables: one for the source, one for silver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from deltasmelt.bronze.config.sections import SnapshotSettings
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.sql import literal, quote
from tests.bronze.replaying import read_all, session, source_of
from tests.fix_spark import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut

Rows = list[tuple[str | None, ...]]

_AT_ONCE = 40
"""Number of tables in one statement."""


class RealSource:
    """A database, its bronze, and silver of it.

    Args:
        spark: the session that silver uses.
        dsn: the DSN of the database.
        path: the path of the lake.
        history: tables for which silver also keeps history.
        more: further settings of the source section.
    """

    def __init__(
        self, spark: SparkSession, dsn: str, path: str, *, history: Sequence[str] = (), **more: Any
    ) -> None:
        self.spark = spark
        self.lake = Lake(path=path)
        self.source = source_of(dsn, **{"tables": ["public.*"], **more})
        self.connection = session(self.source)
        self.control = ControlTables(self.lake)
        self.history = history
        settings = SilverSettings(history=[f"public.{name}" for name in history])
        self.silver = Silver(spark, self.lake, settings, self.control)
        self.cut: Cut | None = None

    def play(self, *transactions: str) -> None:
        """Run transactions, each a text of statements separated by semicolons."""
        for transaction in transactions:
            try:
                self.connection.execute(transaction.encode())
            except Exception as error:
                error.add_note(transaction)
                raise

    def read(self) -> None:
        """Read the stream into bronze up to now."""
        read_all(self.source, str(self.lake.path), snapshot=SnapshotSettings(workers=2))

    def fold(self) -> None:
        """Run a cycle of silver up to bronze's frontier."""
        self.cut = self.silver.cycle() or self.control.latest_cut("silver")

    def errors(self) -> dict[str, str]:
        """Return open errors by the name of their table."""
        open_errors = self.control.open_errors()
        return {error.name.removeprefix("public."): f"{error.code}: {error.message}" for error in open_errors}

    def differences(self, tables: Iterable[str | TableName]) -> dict[str, str]:
        """Return, by silver table, the differences from the source; also for current versions of histories.

        Table names without a schema belong to the schema public.
        """
        named_tables = [
            table if isinstance(table, TableName) else TableName("public", table) for table in tables
        ]
        sources = {table.silver_name: table for table in sorted(named_tables)}
        columns = {name: self._columns(table) for name, table in sources.items()}
        cut_names = set() if self.cut is None else set(self.cut.tables)
        errors = self.errors()
        different = {
            name: f"the cut does not name it ({errors.get(name, 'no error')})"
            for name in columns.keys() - cut_names
        }
        views = {name: "true" for name in columns if name in cut_names}
        views |= {f"{name}__history": "_valid_to_lsn IS NULL" for name in self.history if name in cut_names}
        for view, rows in self._silver_rows(views, columns).items():
            name = view.removesuffix("__history")
            source_rows = self._source_rows(sources[name], columns[name])
            if rows != source_rows:
                different[name] = (
                    f"{view} of {columns[name]}: silver {_short(rows)}, source {_short(source_rows)}"
                )
        return different

    def close(self) -> None:
        """End silver's threads and the connection."""
        self.silver.close()
        self.connection.close()

    def _columns(self, table: TableName) -> list[str]:
        rows = self.connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
            "AND NOT attisdropped ORDER BY attnum",
            [table.quoted],
        )
        return [row[0] for row in rows]

    def _source_rows(self, table: TableName, columns: Sequence[str]) -> Rows:
        cells = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(column)) for column in columns)
        query = sql.SQL("SELECT {} FROM {}").format(cells, sql.Identifier(table.schema, table.name))
        return sorted((tuple(row) for row in self.connection.execute(query)), key=repr)

    def _silver_rows(self, views: dict[str, str], columns: dict[str, list[str]]) -> dict[str, Rows]:
        """Return rows by view, a silver table with a condition; a text replaces a missing column."""
        rows_of_views: dict[str, Rows] = {view: [] for view in views}
        for start in range(0, len(views), _AT_ONCE):
            parts = []
            for view, condition in list(views.items())[start : start + _AT_ONCE]:
                address = self.lake.sql("silver", view)
                stored = set(self.spark.table(address).columns)
                cells = [
                    f"CAST({quote(name)} AS STRING)" if name in stored else literal(f"no column {name}")
                    for name in columns[view.removesuffix("__history")]
                ]
                parts.append(
                    f"SELECT {literal(view)} AS name, array({', '.join(cells)}) AS cells,"
                    f" CAST(_unrepresentable AS STRING) AS lost FROM {address} WHERE {condition}"
                )
            for row in rows_of(self.spark, "\nUNION ALL ".join(parts)):
                rows_of_views[row["name"]].append(
                    (*row["cells"], *([] if row["lost"] is None else [row["lost"]]))
                )
        return {view: sorted(rows, key=repr) for view, rows in rows_of_views.items()}


def _short(rows: Rows) -> list[tuple[str | None, ...]]:
    """Shorten long values to their length."""
    return [
        tuple(f"{text[:6]}… ({len(text)})" if text and len(text) > 40 else text for text in row)
        for row in rows
    ]
