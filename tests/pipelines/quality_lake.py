"""A small lake for the quality tests: silver and gold tables, cuts and shapes, as the layers leave them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bronze import delta
from bronze.control import Cut
from bronze.control_tables import ControlTables
from bronze.identifiers import TableName
from bronze.lake import Lake
from bronze.lsn import Lsn
from bronze.relations import append_relations
from bronze.shapes import Column, PgType, Relation
from bronze.tables import RELATIONS_SCHEMA
from pipelines.settings import Pipeline, load_pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from psycopg import Connection
    from pyspark.sql import SparkSession

SCHEMA = """
CREATE TYPE tier AS ENUM ('free', 'plus');
CREATE TABLE countries (code char(2) PRIMARY KEY, name text NOT NULL);
CREATE TABLE customers (
    id bigint PRIMARY KEY, email text NOT NULL, tier tier, country char(2) REFERENCES countries, score numeric(10, 2) NOT NULL
);
CREATE TABLE orders (
    customer_id bigint NOT NULL REFERENCES customers, number int NOT NULL, total numeric(12, 2) NOT NULL,
    PRIMARY KEY (customer_id, number)
);
"""

_OWN = "CAST(1 AS BIGINT) AS _commit_lsn, now() AS _commit_ts"
_NOTHING = "CAST(NULL AS MAP<STRING, STRING>) AS _unrepresentable"

SILVER = {
    "countries": f"""SELECT *, {_OWN}, {_NOTHING} FROM VALUES ('DE', 'Germany'), ('FR', 'France') AS t(code, name)""",
    "customers": f"""
        SELECT CAST(id AS BIGINT) AS id, email, tier, country, CAST(score AS DECIMAL(10, 2)) AS score, {_OWN},
               IF(score IS NULL, map('score', 'NaN'), NULL) AS _unrepresentable
        FROM VALUES (1, 'ada@example.com', 'free', 'DE', 1.5), (2, 'bob@example.com', 'plus', 'FR', 2.5),
                    (3, 'eve@example.com', NULL, NULL, NULL) AS t(id, email, tier, country, score)""",
    "orders": f"""
        SELECT CAST(customer_id AS BIGINT) AS customer_id, number, CAST(total AS DECIMAL(12, 2)) AS total, {_OWN}, {_NOTHING}
        FROM VALUES (1, 1, 10.0), (1, 2, 20.0), (2, 1, 5.0) AS t(customer_id, number, total)""",
}

GOLD = {
    "customer": """
        SELECT id, email, transform(sequence(1, CAST(id AS INT)), n -> named_struct('number', n)) AS orders,
               CAST(1 AS BIGINT) AS _commit_lsn, 'x' AS _content_hash
        FROM VALUES (1, 'ada@example.com'), (2, 'bob@example.com'), (3, 'eve@example.com') AS t(id, email)"""
}


@dataclass
class QualityLake:
    """The lake, its pipeline, and what a test changes in it."""

    spark: SparkSession
    folder: Path
    pipeline: Pipeline
    lake: Lake
    lsn: int = 100

    def write(self, layer: str, name: str, query: str) -> None:
        """Replace a table by what a query returns."""
        path = f"{self.lake.path}/{layer}/{name}"
        frame = self.spark.sql(query)
        frame.coalesce(1).write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)

    def insert(self, layer: str, name: str, query: str) -> None:
        """Add rows to a table."""
        path = f"{self.lake.path}/{layer}/{name}"
        self.spark.sql(f"INSERT INTO delta.`{path}` {query}")

    def cut(self, layer: str, *names: str) -> None:
        """Record the tables' present versions as a cut at `lsn`."""
        versions = {}
        for name in names:
            table = delta.open_table(f"{self.lake.path}/{layer}/{name}")
            assert table is not None
            versions[name] = table.version()
        ControlTables(self.lake).record_cut(Cut(layer, Lsn(self.lsn), None, versions))  # type: ignore[arg-type]

    def cut_all(self) -> None:
        """A new cut of both layers, as the tables are now."""
        self.lsn += 1
        self.cut("silver", *SILVER)
        self.cut("gold", *GOLD)

    def suite(self, name: str, text: str) -> None:
        """Write a suite file."""
        (self.folder / "expectations" / name).write_text(text)


def build_lake(
    spark: SparkSession, folder: Path, dsn: str, connection: Connection[tuple[object, ...]] | None = None
) -> QualityLake:
    """A lake of the shop in `SCHEMA`, at one cut; shapes are read from the source where there is a connection."""
    (folder / "expectations").mkdir(parents=True)
    file = folder / "pipeline.yml"
    file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: s, publication: p}}\nlake: {{path: lake}}\n"
        "gold: {documents: [documents/*.yml]}\nquality: {suites: [expectations/*.yml]}\n"
    )
    pipeline = load_pipeline(file)
    lake = pipeline.lake_address()
    built = QualityLake(spark, folder, pipeline, lake)
    for name, query in SILVER.items():
        built.write("silver", name, query)
    for name, query in GOLD.items():
        built.write("gold", name, query)
    built.cut_all()
    oids = {} if connection is None else _oids(connection)
    table = delta.open_or_create(f"{lake.path}/bronze/relations", RELATIONS_SCHEMA, description="shapes")
    append_relations(table, shop_relations(oids))
    return built


def _oids(connection: Connection[tuple[object, ...]]) -> dict[str, int]:
    found = connection.execute(
        "SELECT relname::text, oid::bigint FROM pg_class WHERE relnamespace = 'public'::regnamespace "
        "UNION ALL SELECT 'type ' || typname, oid::bigint FROM pg_type WHERE typname = 'tier'"
    )
    return {str(name): int(str(oid)) for name, oid in found}


def shop_relations(oids: dict[str, int]) -> list[Relation]:
    """The shapes of `SCHEMA` as the reader records them."""
    text, bigint, char = PgType("base", "text"), PgType("base", "int8"), PgType("base", "bpchar", typmod=6)
    number, integer = PgType("base", "numeric", typmod=655366), PgType("base", "int4")
    tier = PgType("enum", "tier", "public", oids.get("type tier", 9), labels=("free", "plus"))

    def relation(name: str, key: tuple[str, ...], *columns: tuple[str, PgType, bool]) -> Relation:
        made = tuple(
            Column(column, attnum, type_, type_.name, not_null, column in key)
            for attnum, (column, type_, not_null) in enumerate(columns, 1)
        )
        return Relation(oids.get(name, hash(name) % 9999), TableName("public", name), made, key, "d", Lsn(1))

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
