"""A small lake for the quality tests: silver and gold tables, cuts and shapes, as the layers leave them."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.shapes import Column, PgType, Relation
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA, FORMAT, FORMAT_PROPERTY, RELATIONS_SCHEMA
from deltasmelt.bronze.store.relations import append_relations
from deltasmelt.gold.builder.build_start import described, digest_of
from deltasmelt.gold.language.document import load_documents
from deltasmelt.gold.tree.resolve import resolve
from deltasmelt.pipelines.settings import Pipeline, load_pipeline
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.settings import SilverSettings

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from psycopg import Connection
    from psycopg.rows import TupleRow

    from deltasmelt.bronze.lake.location import Lake

SCHEMA = """
CREATE TYPE tier AS ENUM ('free', 'plus');
CREATE TABLE countries (code char(2) PRIMARY KEY, name text NOT NULL);
CREATE TABLE customers (
    id bigint PRIMARY KEY, email text NOT NULL, tier tier, country char(2) REFERENCES countries,
    score numeric(10, 2) NOT NULL
);
CREATE TABLE orders (
    customer_id bigint NOT NULL REFERENCES customers, number int NOT NULL, total numeric(12, 2) NOT NULL,
    PRIMARY KEY (customer_id, number)
);
"""

Row: TypeAlias = dict[str, Any]

_OWN = [
    pa.field("_commit_lsn", pa.int64()),
    pa.field("_commit_ts", pa.timestamp("us", tz="UTC")),
    pa.field("_unrepresentable", pa.map_(pa.string(), pa.string())),
]

SCHEMAS: dict[str, pa.Schema] = {
    "silver.countries": pa.schema([("code", pa.string()), ("name", pa.string()), *_OWN]),
    "silver.customers": pa.schema(
        [
            ("id", pa.int64()),
            ("email", pa.string()),
            ("tier", pa.string()),
            ("country", pa.string()),
            ("score", pa.decimal128(10, 2)),
            *_OWN,
        ]
    ),
    "silver.orders": pa.schema(
        [("customer_id", pa.int64()), ("number", pa.int32()), ("total", pa.decimal128(12, 2)), *_OWN]
    ),
    "gold.customer": pa.schema(
        [
            ("id", pa.int64()),
            ("email", pa.string()),
            ("orders", pa.list_(pa.struct([("customer_id", pa.int64()), ("number", pa.int32())]))),
            ("_commit_lsn", pa.int64()),
            ("_content_hash", pa.string()),
        ]
    ),
}


def elements(*keys: tuple[int, int]) -> list[Row]:
    """Return a document's elements: orders by customer and number."""
    return [{"customer_id": customer, "number": number} for customer, number in keys]


ROWS: dict[str, list[Row]] = {
    "silver.countries": [{"code": "DE", "name": "Germany"}, {"code": "FR", "name": "France"}],
    "silver.customers": [
        {"id": 1, "email": "ada@example.com", "tier": "free", "country": "DE", "score": Decimal("1.50")},
        {"id": 2, "email": "bob@example.com", "tier": "plus", "country": "FR", "score": Decimal("2.50")},
        {"id": 3, "email": "eve@example.com", "_unrepresentable": {"score": "NaN"}},
    ],
    "silver.orders": [
        {"customer_id": 1, "number": 1, "total": Decimal("10.00")},
        {"customer_id": 1, "number": 2, "total": Decimal("20.00")},
        {"customer_id": 2, "number": 1, "total": Decimal("5.00")},
    ],
    "gold.customer": [
        {"id": 1, "email": "ada@example.com", "orders": elements((1, 1), (1, 2))},
        {"id": 2, "email": "bob@example.com", "orders": elements((2, 1))},
        {"id": 3, "email": "eve@example.com", "orders": []},
    ],
}

DOCUMENT = """
document: customer
root: public.customers
fields:
  - id
  - email
  - orders: {many: public.orders, on: {customer_id: id}, fields: [customer_id, number]}
"""


DOCUMENT_TYPES = "struct<id:bigint,email:string,orders:array<struct<customer_id:bigint,number:int>>>"
"""Spark's type of `DOCUMENT`."""

DEFINITION = "deltasmelt.definition"


def definition_of(file: Path) -> str:
    """Return the digest of the shop's document, as recorded in the document's gold table."""
    (document,) = load_documents([file])
    tree, problems = resolve(document, silver_catalog(shop_relations({}), SilverSettings()))
    assert tree is not None, problems
    return digest_of(described(document, tree, {}), DOCUMENT_TYPES)


@dataclass
class QualityLake:
    """The lake and its pipeline, with methods for a test's changes."""

    folder: Path
    read: Pipeline
    lake: Lake
    lsn: int = 100
    commit_ts: datetime | None = None

    @property
    def pipeline(self) -> Pipeline:
        """Return the pipeline of the file, with suites only if a test has written some."""
        if any((self.folder / "expectations").glob("*.yml")):
            return self.read
        quality = self.read.quality.model_copy(update={"suites": []})
        return self.read.model_copy(update={"quality": quality})

    @property
    def document(self) -> Path:
        """Return the path of the only document."""
        return self.folder / "documents" / "customer.yml"

    def write(self, name: str, rows: list[Row], schema: pa.Schema | None = None) -> None:
        """Replace a table (``silver.orders``) by these rows; columns that a row omits are NULL."""
        table = pa.Table.from_pylist(rows, schema=schema or SCHEMAS[name])
        if name == "gold.customer" and not DeltaTable.is_deltatable(self._path(name)):
            DeltaTable.create(
                self._path(name),
                table.schema,
                configuration={DEFINITION: definition_of(self.document)},
                raise_if_key_not_exists=False,
            )
        write_deltalake(self._path(name), table, mode="overwrite", schema_mode="overwrite")

    def insert(self, name: str, *rows: Row) -> None:
        """Add rows to a table."""
        table = pa.Table.from_pylist(list(rows), schema=SCHEMAS[name])
        write_deltalake(self._path(name), table, mode="append")

    def cut(self, *names: str) -> None:
        """Record the tables' current versions as a cut at `lsn`, one per layer."""
        for layer in ("silver", "gold"):
            of_layer = [name.partition(".")[2] for name in names if name.startswith(f"{layer}.")]
            versions = {name: DeltaTable(self._path(f"{layer}.{name}")).version() for name in of_layer}
            if versions:
                cut = Cut(layer, Lsn(self.lsn), self.commit_ts, versions)
                ControlTables(self.lake).record_cut(cut)

    def alone(self, name: str) -> Pipeline:
        """Record a cut of one silver table; return a pipeline without documents, whose runs read this cut."""
        self.lsn += 1
        self.cut(name)
        gold = self.read.gold.model_copy(update={"documents": []})
        return self.pipeline.model_copy(update={"gold": gold})

    def cut_all(self) -> None:
        """Record a new cut of both layers at the tables' current versions."""
        self.lsn += 1
        self.cut(*ROWS)

    def log(self, *changes: Row) -> None:
        """Append changes to `bronze.changes`; by default a change is an insert into orders."""
        rows = [
            {"op": "insert", "table_schema": "public", "table_name": "orders", "end_of_tx": False, **change}
            for change in changes
        ]
        table = delta.open_or_create(
            self._path("bronze.changes"),
            CHANGES_SCHEMA,
            description="Changes",
            properties={FORMAT_PROPERTY: FORMAT},
        )
        table.append(pa.Table.from_pylist(rows, schema=CHANGES_SCHEMA))

    def transaction(self, lsn: int, count: int, **change: Any) -> None:
        """Append a whole transaction of `count` changes."""
        self.log(
            *({"commit_lsn": lsn, "seq": n, "end_of_tx": n == count - 1, **change} for n in range(count))
        )

    def restore(self) -> None:
        """Restore sound tables and record a new cut."""
        for name, rows in ROWS.items():
            self.write(name, rows)
        self.cut_all()

    def _path(self, name: str) -> str:
        layer, _, table = name.partition(".")
        return f"{self.lake.path}/{layer}/{table}"

    def suite(self, name: str, text: str) -> None:
        """Write a suite file."""
        (self.folder / "expectations" / name).write_text(text)


def build_lake(folder: Path, dsn: str, connection: Connection[TupleRow] | None = None) -> QualityLake:
    """Create a lake of the shop in `SCHEMA` at one cut; a connection supplies the source's oids."""
    (folder / "expectations").mkdir(parents=True)
    (folder / "documents").mkdir()
    (folder / "documents" / "customer.yml").write_text(DOCUMENT)
    file = folder / "pipeline.yml"
    file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: s, publication: p}}\nlake: {{path: lake}}\n"
        "gold: {documents: [documents/*.yml]}\nquality: {suites: [expectations/*.yml]}\n"
    )
    pipeline = load_pipeline(file)
    built = QualityLake(folder, pipeline, pipeline.lake_address())
    built.restore()
    built.log({"commit_lsn": 5, "seq": 0, "op": "snapshot", "xid": None})
    built.log({"commit_lsn": 5, "seq": 1, "op": "snapshot_end", "end_of_tx": True})
    built.transaction(10, 3)
    built.transaction(20, 1)
    built.transaction(10**6, 2, commit_ts=None)
    table = delta.open_or_create(
        f"{built.lake.path}/bronze/relations", RELATIONS_SCHEMA, description="Shapes of tables"
    )
    append_relations(table, shop_relations({} if connection is None else _oids(connection)))
    return built


def _oids(connection: Connection[TupleRow]) -> dict[str, int]:
    rows = connection.execute(
        "SELECT relname::text, oid::bigint FROM pg_class WHERE relnamespace = 'public'::regnamespace "
        "UNION ALL SELECT 'type ' || typname, oid::bigint FROM pg_type WHERE typname = 'tier'"
    )
    return {str(name): int(str(oid)) for name, oid in rows}


def shop_relations(oids: dict[str, int]) -> list[Relation]:
    """Return the shapes of `SCHEMA` as the reader records them."""
    text, bigint, char = PgType("base", "text"), PgType("base", "int8"), PgType("base", "bpchar", typmod=6)
    number, integer = PgType("base", "numeric", typmod=655366), PgType("base", "int4")
    tier = PgType("enum", "tier", "public", oids.get("type tier", 9), labels=("free", "plus"))

    def relation(name: str, key: tuple[str, ...], *columns: tuple[str, PgType, bool]) -> Relation:
        table_columns = tuple(
            Column(column, attnum, type_, type_.name, not_null, column in key)
            for attnum, (column, type_, not_null) in enumerate(columns, 1)
        )
        return Relation(
            oids.get(name, hash(name) % 9999), TableName("public", name), table_columns, key, "d", Lsn(1)
        )

    return [
        relation("countries", ("code",), ("code", char, True), ("name", text, True)),
        relation(
            "customers",
            ("id",),
            ("id", bigint, True),
            ("email", text, True),
            ("tier", tier, False),
            ("country", char, False),
            ("score", number, True),
        ),
        relation(
            "orders",
            ("customer_id", "number"),
            ("customer_id", bigint, True),
            ("number", integer, True),
            ("total", number, True),
        ),
    ]
