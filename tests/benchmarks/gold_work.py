"""Silver tables for gold's benchmarks, created in Spark without a source, and hand-written SQL.

The tables have the columns, properties and clustering of silver's tables (`silver.schema.ddl`), and the files
of a snapshot: a few large files, with rows in the order of the source. A customer's orders are scattered over
the files.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.config.yaml_file import parse_yaml
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_table
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.gold.cycle import Gold
from deltasmelt.gold.language.document import parse_document
from deltasmelt.pipelines.runtime.clustering import by_name, clustered
from deltasmelt.pipelines.runtime.maintenance import Maintenance
from deltasmelt.silver.schema import ddl
from deltasmelt.silver.schema.catalog import SilverTable, silver_table
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.spark.semantics import PINNED
from deltasmelt.silver.spark.tuning import settings
from tests.gold.shop import relation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.gold.language.document import Document
    from deltasmelt.pipelines.runtime.maintenance import MaintenanceResult

CUSTOMER: Final = """
document: customer
root: public.customers
fields:
  - id
  - email
  - name
  - tier
  - balance
  - country_id
  - created_at
  - orders: {many: public.orders, on: {customer_id: id}, fields: [id, status, total, placed_at]}
"""
NESTED: Final = """
document: nested
root: public.customers
fields:
  - id
  - email
  - orders:
      many: public.orders
      on: {customer_id: id}
      order_by: [placed_at desc]
      fields:
        - id
        - status
        - items: {many: public.items, on: {order_id: id}, fields: [id, sku, qty]}
  - units: {sum: public.items.qty, through: {table: public.orders, on: {customer_id: id}, to: {id: order_id}}}
"""
STAFF: Final = """
document: staff
root: public.employees
fields:
  - id
  - name
  - staff:
      many: public.employees
      on: {manager_id: id}
      recurse: {on: {manager_id: id}, max_depth: DEPTH}
      fields: [id, name]
"""
SHAPES: Final = {
    "public.customers": {
        "id": "int8", "email": "text", "name": "text", "tier": "text", "balance": "numeric",
        "country_id": "int2", "created_at": "timestamptz", "address": "text", "notes": "text",
    },
    "public.orders": {
        "id": "int8", "customer_id": "int8", "status": "text", "total": "numeric",
        "placed_at": "timestamptz", "note": "text", "uid": "text",
    },
    "public.items": {"id": "int8", "order_id": "int8", "sku": "text", "qty": "int4"},
    "public.employees": {"id": "int8", "manager_id": "int8", "name": "text"},
}  # fmt: skip

_TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"
_TIME: Final = "timestamp_seconds(1760000000 + (n * 7919) % 30000000)"
_ROWS: Final = {
    "customers": f"""
      n AS id, concat('user', n, '@example.com') AS email, concat('Name ', n % 5000, ' Surname ', n) AS name,
      element_at(array('gold', 'silver', 'basic'), 1 + int(n % 3)) AS tier,
      CAST(n % 100000 / 100 AS DECIMAL(12,2)) AS balance, smallint(n % 200) AS country_id,
      {_TIME} AS created_at, concat(n, ' Some Street, Some Town') AS address, repeat('note ', 8) AS notes""",
    "orders": f"""
      n AS id, {{parent}} AS customer_id,
      element_at(array('new', 'paid', 'shipped', 'done'), 1 + int(n % 4)) AS status,
      CAST(n % 1000 * 1.37 AS DECIMAL(12,2)) AS total, {_TIME} AS placed_at,
      concat('note for order ', n) AS note, sha1(string(n)) AS uid""",
    "items": """
      n AS id, 1 + n DIV 2 AS order_id, concat('sku-', n % 10000) AS sku, int(1 + n % 7) AS qty""",
    "employees": """
      n AS id, IF(n = 1, NULL, n DIV 2) AS manager_id, concat('Name ', n) AS name""",
}
_FILES: Final = {"customers": 2, "orders": 4, "items": 2}

HAND_WRITTEN: Final = """
CREATE OR REPLACE TABLE {target} USING DELTA AS
SELECT c.id, c.email, c.name, c.tier, c.balance, c.country_id, c.created_at,
       coalesce(o.orders, array()) AS orders
FROM {customers} AS c
LEFT JOIN (
  SELECT customer_id, {collected} AS orders
  FROM {orders}
  GROUP BY customer_id
) AS o ON o.customer_id = c.id
"""
_COLLECTED: Final = (
    "collect_list(named_struct('id', id, 'status', status, 'total', total, 'placed_at', placed_at))"
)
COLLECTED: Final = {"hand-written": _COLLECTED, "hand-written, sorted": f"array_sort({_COLLECTED})"}


class GoldWork:
    """A lake with changing silver tables, and gold over them."""

    def __init__(self, spark: SparkSession, path: Path, *texts: str) -> None:
        self.spark = spark
        self.lake = Lake(path=str(path))
        self.control = ControlTables(self.lake)
        self.catalog = _catalog()
        self.documents: list[Document] = [
            parse_document(parse_yaml(text, Path("document.yml"))) for text in texts
        ]
        self.gold = Gold(spark, self.lake, self.documents, lambda: self.catalog, self.control)
        last = self.control.latest_cut("silver")
        self._lsn = 1000 if last is None else int(last.commit_lsn)

    @property
    def moment(self) -> int:
        """Return the LSN of the newest change or cut."""
        return self._lsn

    def fill(self, name: str, rows: int, parent: str = "n") -> None:
        """Create a silver table with rows 1 to `rows`.

        Args:
            parent: an order's customer, as an expression of the order's number ``n``.
        """
        target = self.lake.sql("silver", name)
        table = self.catalog[TableName("public", name)]
        self.spark.sql(ddl.create(target, table)[0])
        names = ", ".join([column.name for column in table.columns] + list(table.own_columns))
        files = 1 if rows <= 10_000 else _FILES[name]
        self.spark.range(1, rows + 1, numPartitions=files).createOrReplaceTempView("numbers")
        own_values = f"{self._lsn}L, timestamp'2026-01-01', NULL"
        self._write(
            f"INSERT INTO {target} ({names}) SELECT {_ROWS[name].format(parent=parent)}, {own_values} "
            "FROM (SELECT id AS n FROM numbers)"
        )

    def touch(self, ids: str, value: str, column: str = "orders.status") -> None:
        """Update rows as silver updates known rows: one MERGE of finished rows.

        Args:
            ids: query with a column ``id`` that selects the rows.
            value: new value of the column in all selected rows.
            column: name of the changed column, as ``table.column``.
        """
        self._lsn += 1000
        table, name = column.split(".")
        self._write(
            f"MERGE INTO {self.lake.sql('silver', table)} AS t\n"
            f"USING (SELECT /*+ BROADCAST(f) */ * FROM ({ids}) AS f) AS s ON t.id = s.id\n"
            f"WHEN MATCHED THEN UPDATE SET t.{name} = '{value}', t._commit_lsn = {self._lsn}L"
        )

    def _write(self, statement: str) -> None:
        """Run a statement that writes files with the settings of silver's session."""
        with settings(self.spark, {_TIMESTAMPS: PINNED[_TIMESTAMPS]}):
            self.spark.sql(statement)

    def cut(self) -> None:
        """Record a silver cut of the current tables."""
        self._lsn += 1
        versions = {}
        for table in self.catalog.values():
            stored = open_table(self.lake.uri("silver", table.name))
            if stored is not None:
                versions[table.name] = stored.version()
        self.control.record_cut(Cut("silver", Lsn(self._lsn), datetime.now(UTC), versions))

    def shapes(self, settings: SilverSettings) -> dict[str, SilverTable]:
        """Return silver's tables by name, clustered by the documents' join columns or by the settings."""
        relations = [table.relation for table in self.catalog.values()]
        return by_name(relations, clustered(settings, self.documents))

    def maintain(
        self, settings: SilverSettings | None = None, layers: Sequence[Layer] = ("silver", "gold")
    ) -> list[MaintenanceResult]:
        """Run `smelt maintain`; return the result for each existing table."""
        work = Maintenance(
            self.spark, self.lake, self.control, retention=86400, documents=True, layers=layers,
            shapes=self.shapes(settings or SilverSettings()),
        )  # fmt: skip
        results = list(work.all_tables())
        if work.failed:
            raise RuntimeError(work.failed)
        self.cut()
        return results

    def build_by_hand(self, kind: str) -> None:
        """Build the document with hand-written SQL into ``gold.by_hand``."""
        tables: Mapping[str, str] = {name: self.lake.sql("silver", name) for name in ("customers", "orders")}
        target = self.lake.sql("gold", "by_hand")
        self.spark.sql(HAND_WRITTEN.format(target=target, collected=COLLECTED[kind], **tables))


def _catalog() -> dict[TableName, SilverTable]:
    tables = (
        silver_table(relation(name, columns, ("id",)), SilverSettings()) for name, columns in SHAPES.items()
    )
    return {table.table: table for table in tables}
