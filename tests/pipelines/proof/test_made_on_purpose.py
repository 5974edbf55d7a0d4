"""`smelt verify` finds intentional silent faults: in silver's rows, and in gold's compiler.

Each fault of the reader or of silver damages separate rows, and each fault of the compiler a separate
document. One comparison must find all faults, with exact counts, and nothing else. A fault of the compiler
affects everything that gold builds, so gold equals a full rebuild. Only documents that PostgreSQL computes
reveal the fault.

The damaging commits are signed as the product's own, because the log reveals foreign commits.
`tests/pipelines/whole/test_others_in_the_lake.py` tests foreign commits, and `tests/gold/damage.py` damaged
rows of gold. No comparison by Spark finds timestamps in files as INT96: `tests/readers` reads files with
different readers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from deltasmelt.gold.compile import clauses
from deltasmelt.gold.tree import derived
from deltasmelt.pipelines.commands.context import open_gold
from deltasmelt.silver.sql import quote
from tests.fix_postgres import drop_database, make_database
from tests.pipelines.in_process import smelt_here
from tests.pipelines.proof.test_against_source import Source, unequal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from deltasmelt.silver.schema.catalog import SilverTable

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.usefixtures("interpreted")]

OWN: Final = "_commit_lsn, _commit_ts, _unrepresentable, _deleted"
TABLES: Final = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (a int, b int);
CREATE TYPE shy AS ENUM ('a');
CREATE TABLE typed (id int PRIMARY KEY, m mood, p pair, a int, b int, n numeric(12,3), code text, c char(4),
  r regtype, d date, f numeric(8,2), t timestamptz);
INSERT INTO typed SELECT i, 'sad', ROW(i, -i)::pair, i, -i, i + 0.125, NULL, 'ab', NULL,
  'infinity', 'NaN', '-infinity' FROM generate_series(1, 20) i;
UPDATE typed SET r = 'shy'::regtype WHERE id = 7;
CREATE TABLE parted (id int, part int, v text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
INSERT INTO parted SELECT i, 1, 'v' FROM generate_series(1, 20) i;
CREATE TABLE shaped (id int PRIMARY KEY, v text, w text, n numeric(8,2));
INSERT INTO shaped SELECT i, 'v', 'w', i FROM generate_series(1, 20) i;
CREATE TABLE parent (id int PRIMARY KEY, gone int);
INSERT INTO parent VALUES (1, 1);
CREATE SCHEMA elsewhere;
CREATE TABLE elsewhere.child () INHERITS (parent);
INSERT INTO elsewhere.child VALUES (2, 2);
CREATE TABLE owner (id int PRIMARY KEY, code varchar(5), level mood, name text);
INSERT INTO owner SELECT i, 'c' || i, (ARRAY['sad', 'ok'])[i % 2 + 1]::mood, 'Ä' || i
  FROM generate_series(1, 30) i;
CREATE TABLE item (id int PRIMARY KEY, owner text, short char(8), amount numeric(12,2), valid date);
INSERT INTO item SELECT i, 'c' || i % 7, 'c' || i % 7, i, DATE '2024-01-01' + i
  FROM generate_series(1, 120) i;
UPDATE owner SET code = 'c5 ' WHERE id = 5;
UPDATE item SET valid = 'infinity' WHERE id = 10;
CREATE TABLE halved (id int PRIMARY KEY, v text);
INSERT INTO halved VALUES (1, 'v');
CREATE TABLE emptied (id int PRIMARY KEY, v text);
INSERT INTO emptied VALUES (1, 'v');
"""
LATER: Final = """
UPDATE parted SET v = 'w' WHERE id < 5;
DELETE FROM parted WHERE id > 15;
UPDATE item SET amount = amount + 1 WHERE id < 5;
DELETE FROM item WHERE id > 100;
"""

_ITEMS: Final = {"on": {"owner": "code"}}
DOCUMENTS: Final[dict[str, list[object]]] = {
    "faultless": [
        "id",
        {"label": {"sql": "upper(name)"}},
        {"odd": {"count": "public.item", **_ITEMS, "where": "lower(owner) = 'c1'"}},
    ],
    "by_order": [
        "id",
        {"items": {"many": "public.item", **_ITEMS, "order_by": ["amount desc"], "limit": 3,
                   "fields": ["id", "amount", {"owners": {"many": "public.owner", "on": {"code": "owner"},
                                                           "values": "name"}}]}},
    ],
    "by_maximum": ["id", {"largest": {"max": "public.item.amount", **_ITEMS}}],
    "by_text": ["id", {"items": {"many": "public.item", "on": {"short": "code"}, "values": "id"}}],
    "with_lost": [
        "id",
        {"latest": {"max": "public.item.valid", **_ITEMS}},
        {"amounts": {"count_distinct": "public.item.amount", **_ITEMS}},
    ],
}  # fmt: skip


def damage(source: Source) -> None:
    """Damage rows as each fault would leave the rows."""
    # A RESTORE: changes of nine rows are undone.
    source.harm("RESTORE TABLE {parted} TO VERSION AS OF 1")
    # A server's files put back, with a row of another history; rows missing after a partition's TRUNCATE. A
    # new row of another history; rows of a partition loaded without an event; a deleted row that took the key
    # of a live row, and became that row.
    source.harm(
        f"INSERT OVERWRITE {{parted}} SELECT id, part, IF(id = 5, 'of another history', v) AS v, {OWN}"
        " FROM {parted} WHERE id NOT IN (6, 7)"
        f" UNION ALL SELECT 21, part, v, {OWN} FROM {{parted}} WHERE id = 3"
        f" UNION ALL SELECT id, 2, v, {OWN} FROM {{parted}} WHERE id < 4"
        f" UNION ALL SELECT id, part, v, {OWN} FROM {{parted}} WHERE id = 8"
    )
    # A label and attributes traded, columns that swapped names, a rounded number, a value in the place of
    # NULL, blanks at the end of char(n); row 7 names a type, which is renamed below. From row 8 on, values
    # that silver's types cannot hold are NULL, or another value.
    source.harm(
        "UPDATE {typed} SET m = IF(id = 1, 'happy', m), p = IF(id = 2, named_struct('a', p.b, 'b', p.a), p),"
        " a = IF(id = 3, b, a), b = IF(id = 3, a, b), n = IF(id = 4, round(n, 2), n),"
        " code = IF(id = 5, 'a', code), c = IF(id = 6, 'ab  ', c),"
        " _unrepresentable = CASE id WHEN 8 THEN NULL"
        " WHEN 9 THEN map_filter(_unrepresentable, (k, v) -> k <> 'd')"
        " WHEN 10 THEN map_filter(_unrepresentable, (k, v) -> k <> 'f') ELSE _unrepresentable END,"
        " d = IF(id = 11, DATE'9999-12-31', d) WHERE id <= 11"
    )
    source.execute("ALTER TYPE shy RENAME TO bold")
    # Shapes: a column that did not come, a number that is text.
    source.harm("ALTER TABLE {shaped} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    source.harm("ALTER TABLE {shaped} DROP COLUMNS (w, n)")
    source.harm("ALTER TABLE {shaped} ADD COLUMN n STRING")
    source.harm("UPDATE {shaped} SET n = CAST(id AS STRING) || '.00'")
    # A power cut.
    for name, size in (("halved", 300), ("emptied", 0)):
        entry = max(Path(source.lake.uri("silver", name), "_delta_log").glob("*.json"))
        entry.write_bytes(entry.read_bytes()[:size])
    jvm: Any = source.spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def break_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make gold order, join and compare by text; each fault appears in a separate document."""
    plain_measure, plain_order = clauses._measure, clauses.ordered

    def measure(function: str, value: str, only: str, ddl: str) -> str:
        if function == "max" and ddl.startswith("DECIMAL"):
            return f"CAST(max(CAST({value} AS STRING)){only} AS {ddl})"
        if function == "count_distinct":
            return f"count(DISTINCT floor({value} / 10)){only}"
        return plain_measure(function, value, only, ddl)

    def by_text(table: SilverTable) -> list[str]:
        """Return each column derived for a comparison as the original column."""
        return [
            f"{quote(column.origin)} AS {quote(column.name)}"
            if "_equal_" in column.name
            else f"{column.sql} AS {column.name}"
            for column in table.columns
            if isinstance(column, derived.Derived)
        ]

    monkeypatch.setattr(clauses, "_measure", measure)
    monkeypatch.setattr(derived, "computed", by_text)
    monkeypatch.setattr(
        clauses, "ordered", lambda wanted, value: plain_order(wanted, f"CAST({value} AS STRING)")
    )


@pytest.fixture(scope="module")
def report(spark: SparkSession, server_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the report of `smelt verify` over all faults at once."""
    dsn = make_database(server_dsn)
    folder = tmp_path_factory.mktemp("purpose")
    for name, fields in DOCUMENTS.items():
        text = json.dumps({"document": name, "root": "public.owner", "fields": fields})
        (folder / f"{name}.doc.yml").write_text(text)
    settings = "silver: {deletes: soft}\ngold: {documents: ['*.doc.yml']}\n"
    source = Source(spark, folder, dsn, (TABLES, LATER), settings)
    source.carry()
    with pytest.MonkeyPatch.context() as monkeypatch:
        break_the_compiler(monkeypatch)
        open_gold(spark, source.pipeline, source.control).cycle()
        damage(source)
        process = smelt_here("verify", source.file, folder=folder)
    assert process.returncode == 1, process.stdout + process.stderr
    assert source.left() == []
    yield process.stdout
    drop_database(server_dsn, dsn)


def test_each_fault_of_rows_is_found(report: str) -> None:
    assert {name: shown.counts for name, shown in unequal(report).items() if shown.counts} == {
        "silver.parted": {"twice": 1, "missing": 2, "surplus": 9, "differs": 5},
        "silver.typed": {"differs": 11},
        "silver.shaped": {"differs": 20},
    }
    assert set(map(frozenset, unequal(report)["silver.shaped"].rows.values())) == {frozenset({"w", "n"})}
    lines = report.splitlines()
    for name in ("parent", "owner", "item"):
        assert any(line.startswith(f"silver.{name}: equal to PostgreSQL as of") for line in lines), name


def test_each_fault_of_the_compiler_is_found(report: str) -> None:
    """A value that silver cannot hold withdraws its document: the item is one of owner 3."""
    lines = report.splitlines()
    for name in DOCUMENTS:
        assert any(line.startswith(f"gold.{name}: equal to a full rebuild") for line in lines), name
    assert any(line.startswith("gold.faultless: equal to PostgreSQL's documents as of") for line in lines)
    documents = {name: shown for name, shown in unequal(report).items() if name.startswith("gold.")}
    assert {name: {path for _, path in shown.places} for name, shown in documents.items()} == {
        "gold.by_order": {"items"},
        "gold.by_maximum": {"largest"},
        "gold.by_text": {"items"},
        "gold.with_lost": {"amounts"},
    }
    lost = documents["gold.with_lost"]
    assert "[3]" not in {key for key, _ in lost.places}
    assert lost.headline.endswith("; a sample of 29")
    assert "  a possible cause: values that silver's types cannot hold: public.item.valid (1)" in lines


def test_what_is_not_compared_is_named(report: str) -> None:
    lines = report.splitlines()
    torn = [f"silver.{name}: not compared: " for name in ("halved", "emptied")]
    for beginning in torn:
        (line,) = [line for line in lines if line.startswith(beginning)]
        assert "the newest entry 1 of the table's log is torn" in line
    left_out = [line for line in lines if line.startswith("  not compared")]
    for beginning in (
        "  not compared with PostgreSQL: odd: the filter \"lower(owner) = 'c1'\" of public.item: ",
        "  not compared with PostgreSQL: 1 document with differences, from values that silver's types cannot",
        "  not compared: a query of this table also shows the rows of tables that inherit from the table",
        "  not compared: 20 deleted rows, which only silver has",
        "  not compared: column n__former: the source has no such column",
    ):
        assert sum(line.startswith(beginning) for line in left_out) == 1, (beginning, report)
    assert len(left_out) == 5
    assert lines[-1] == "not compared, see the lines above: 2 tables, 1 column, 20 rows, 1 document, 1 field"
