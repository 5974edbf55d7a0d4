"""Rules for columns and rows, from PostgreSQL to silver, with `smelt verify` and `smelt check`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.rules import hashed
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.silver.cycle import Silver
from tests.bronze.replaying import execute, read_all, source_of
from tests.fix_spark import reading
from tests.pipelines.in_process import smelt_here

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.pipelines.settings import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.usefixtures("interpreted")]

KEY = "the key of the hashes"
TABLES = """
    CREATE TABLE people (email text PRIMARY KEY, born int, notes text);
    CREATE TABLE orders (
        id int PRIMARY KEY, email text REFERENCES people ON UPDATE CASCADE, total numeric(8,2));
    CREATE TABLE gone (id int PRIMARY KEY);
    CREATE TABLE events (tenant int, id int, body text, PRIMARY KEY (tenant, id));
    INSERT INTO people SELECT 'p' || n || '@x', 1900 + n, 'note' FROM generate_series(1, 60) n;
    INSERT INTO orders SELECT n, 'p' || n || '@x', n FROM generate_series(1, 60) n;
    INSERT INTO events SELECT n, n, 'b' FROM generate_series(1, 200) n;
"""
LATER = """
    UPDATE people SET email = 'new@x' WHERE email = 'p7@x';
    UPDATE people SET born = 2000 WHERE email = 'p8@x';
    DELETE FROM orders WHERE id = 9;
    UPDATE events SET tenant = 300 WHERE tenant = 5;
    UPDATE events SET tenant = 50 WHERE tenant = 150;
    UPDATE events SET body = 'c';
"""
RULES = f"""
  hash_key: {KEY}
  columns:
    public.people: {{email: hash, born: mask, notes: exclude}}
    public.orders: {{email: hash}}
    public.events: {{body: exclude}}
    public.gone: {{id: hash}}
  where: {{public.events: tenant < 100}}
"""
DOCUMENT = """
document: person
root: public.people
fields: [email, born, {orders: {count: public.orders, on: {email: email}}}]
"""


def write(folder: Path, dsn: str, rules: str) -> Pipeline:
    source = source_of(dsn)
    file = folder / "pipeline.yml"
    file.write_text(
        f"pipeline: shop\nsource:\n  dsn: '{dsn}'\n  slot: {source.slot}\n  publication: smelt{rules}\n"
        "lake: {path: ./lake}\ngold: {documents: [person.yml]}\nsilver: {history: [public.orders]}\n"
    )
    return load_pipeline(file)


def carry(spark: SparkSession, pipeline: Pipeline) -> None:
    lake = pipeline.lake_address()
    read_all(pipeline.source, str(lake.path))
    silver = Silver(spark, lake, pipeline.silver, ControlTables(lake))
    silver.cycle()
    silver.close()


def smelt(command: str, pipeline: Pipeline, folder: Path, *more: str) -> tuple[int, Any]:
    process = smelt_here(command, folder / "pipeline.yml", *more, "--output", "json", folder=folder)
    assert process.stdout, process.stderr
    return process.returncode, json.loads(process.stdout)


def test_silver_equals_the_ruled_source(spark: SparkSession, tmp_path: Path, database: str) -> None:
    """The edit of the rules turns numbers into text, removes a column and rows, and needs snapshots."""
    (tmp_path / "person.yml").write_text(DOCUMENT)
    plain = write(tmp_path, database, "")
    execute(database, TABLES)
    carry(spark, plain)
    execute(database, "DROP TABLE gone")
    ruled = write(tmp_path, database, RULES)
    _, findings = smelt("check", ruled, tmp_path)
    changed = {finding["subject"] for finding in findings if finding["code"] == "rules-changed"}
    assert changed == {"public.people", "public.orders", "public.events"}
    assert "rule-table-unknown" not in {finding["code"] for finding in findings}  # the lake knows the table
    execute(database, LATER)
    carry(spark, ruled)
    built = smelt_here("gold", tmp_path / "pipeline.yml", "--until-caught-up", folder=tmp_path)
    assert built.returncode == 0, built.stderr
    execute(database, LATER.replace("new@x", "newer@x").replace("p7@x", "p17@x").replace("= 5", "= 6"))
    read_all(ruled.source, str(ruled.lake_address().path))
    code, verified = smelt("verify", ruled, tmp_path)
    assert (code, verified["not_compared"]) == (0, []), json.dumps(verified)
    assert {table["name"]: table["source_rows"] for table in verified["tables"]} == {
        "events": 98, "orders": 59, "orders__history": 59, "people": 60,
    }  # fmt: skip
    assert "source.columns or source.where changes the rows of public.orders" in str(verified)
    carry(spark, ruled)
    with reading(spark):
        people = spark.sql(f"SELECT * FROM {ruled.lake_address().sql('silver', 'people')}").collect()
    row = next(row for row in people if row["email"] == hashed("p8@x", KEY.encode()))
    assert row["born"] == "0000"
    assert "notes" not in row.asDict() or row["notes"] is None
    former_values_stay_in_histories_alone(spark, ruled, tmp_path)
    code, verified = smelt("verify", ruled, tmp_path, "--sample", "0.5")
    assert code == 0, verified
    (tmp_path / "person.yml").write_text(DOCUMENT + "where: \"email <> 'p1@x'\"\n")
    _, findings = smelt("check", ruled, tmp_path, "--offline")
    assert [f["code"] for f in findings if f["level"] == "error"] == ["constant-clear"]
    (tmp_path / "person.yml").write_text(DOCUMENT)
    half = RULES.replace("public.orders: {email: hash}", '"public.orders": {"*EMAL": hash}')
    _, findings = smelt("check", write(tmp_path, database, half), tmp_path)
    codes = {(finding["code"], finding["level"]) for finding in findings}
    assert codes >= {("join-rules-differ", "error"), ("column-rule-unmatched", "warning")}
    ruled = write(tmp_path, database, RULES)
    (tmp_path / "person.yml").write_text(DOCUMENT.replace("born,", "notes,"))
    code, findings = smelt("check", ruled, tmp_path)
    assert code == 1
    assert any("source.columns excludes notes" in finding["message"] for finding in findings)
    execute(database, "ALTER TABLE orders RENAME TO sales")
    code, findings = smelt("check", ruled, tmp_path)
    assert {f["subject"] for f in findings if f["code"] == "column-rule-lost"} == {"public.sales"}
    code, verified = smelt("verify", ruled, tmp_path, "--table", "public.sales")
    assert code == 1
    assert "was called public.orders" in str(verified["not_compared"])


def former_values_stay_in_histories_alone(spark: SparkSession, pipeline: Pipeline, folder: Path) -> None:
    """The snapshot empties an excluded column; no rebuild removes former versions from a history."""

    def found() -> dict[str, str]:
        _, findings = smelt("check", pipeline, folder, "--offline")
        return {f["subject"]: f["level"] for f in findings if f["code"] == "former-values"}

    def count(table: str, condition: str) -> int:
        name = pipeline.lake_address().sql("silver", table)
        return spark.sql(f"SELECT 1 FROM {name} WHERE {condition}").count()

    assert found() == {"silver.orders__history": "info"}
    assert count("events", "body IS NOT NULL") == 0
    assert count("orders", "email LIKE '%@x'") == 0
    assert count("orders__history", "email LIKE '%@x'") > 0
    smelt_here("rebuild", folder / "pipeline.yml", "silver", "public.orders", folder=folder)
    assert count("orders__history", "email LIKE '%@x'") > 0
    assert found() == {"silver.orders__history": "info"}
