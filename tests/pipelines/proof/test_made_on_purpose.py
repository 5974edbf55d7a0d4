"""`smelt verify` finds intentional silent faults: in silver's rows, and in gold's compiler.

The world holds a table or a document for each fault. A single comparison finds all faults at once, and an
earlier comparison finds none. The test damages rows as each fault of the reader or of silver would. A fault
of the compiler affects everything that gold builds, so gold equals a full rebuild. Only documents that
PostgreSQL computes reveal the fault.

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
from deltasmelt.pipelines.commands.context import load_documents_of, open_gold
from deltasmelt.silver.sql import quote
from tests.fix_postgres import drop_database, make_database
from tests.pipelines.in_process import smelt_here
from tests.pipelines.proof.test_against_source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from deltasmelt.silver.schema.catalog import SilverTable

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

OWN: Final = "_commit_lsn, _commit_ts, _unrepresentable, _deleted"
SIMPLE: Final = ("rewound", "restored", "keyed", "halved", "emptied")
"""Tables of `id` and `v`, one per fault."""

TABLES: Final = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (a int, b int);
CREATE TYPE shy AS ENUM ('a');
CREATE TABLE typed (id int PRIMARY KEY, m mood, p pair, a int, b int, n numeric(12,3), code text, c char(4),
  r regtype);
INSERT INTO typed SELECT i, 'sad', ROW(i, -i)::pair, i, -i, i + 0.125, NULL, 'ab', NULL
  FROM generate_series(1, 20) i;
UPDATE typed SET r = 'shy'::regtype WHERE id = 7;
CREATE TABLE until (id int PRIMARY KEY, d date, f numeric(8,2), t timestamptz);
INSERT INTO until SELECT i, 'infinity', 'NaN', '-infinity' FROM generate_series(1, 20) i;
CREATE TABLE parted (id int, part int, v text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
INSERT INTO parted SELECT i, 1, 'v' FROM generate_series(1, 20) i;
CREATE TABLE lacking (id int PRIMARY KEY, v text, w text);
INSERT INTO lacking SELECT i, 'v', 'w' FROM generate_series(1, 20) i;
CREATE TABLE astext (id int PRIMARY KEY, n numeric(8,2));
INSERT INTO astext SELECT i, i FROM generate_series(1, 20) i;
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
""" + "\n".join(
    f"CREATE TABLE {name} (id int PRIMARY KEY, v text); "
    f"INSERT INTO {name} SELECT i, 'v' FROM generate_series(1, 20) i;"
    for name in SIMPLE
)

LATER: Final = "\n".join(
    [
        *(
            f"UPDATE {name} SET v = 'w' WHERE id < 5; DELETE FROM {name} WHERE id > 15;"
            for name in ("restored", "keyed", "halved", "emptied")
        ),
        "UPDATE item SET amount = amount + 1 WHERE id < 5; DELETE FROM item WHERE id > 100;",
    ]
)

_ITEMS: Final = {"on": {"owner": "code"}}
DOCUMENTS: Final[dict[str, list[object]]] = {
    "by_order": [
        "id",
        {"label": {"sql": "upper(name)"}},
        {"items": {"many": "public.item", **_ITEMS, "order_by": ["amount desc"], "limit": 3,
                   "fields": ["id", "amount", {"owners": {"many": "public.owner", "on": {"code": "owner"},
                                                           "values": "name"}}]}},
        {"odd": {"count": "public.item", **_ITEMS, "where": "lower(owner) = 'c1'"}},
    ],
    "by_maximum": ["id", {"largest": {"max": "public.item.amount", **_ITEMS}}],
    "by_count": ["id", {"amounts": {"count_distinct": "public.item.amount", **_ITEMS, "where": "id > 3"}}],
    "by_text": ["id", {"items": {"many": "public.item", "on": {"short": "code"}, "values": "id"}}],
    "with_lost": [
        "id",
        {"latest": {"max": "public.item.valid", **_ITEMS}},
        {"amounts": {"count_distinct": "public.item.amount", **_ITEMS}},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def source(
    spark: SparkSession, server_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Source]:
    dsn = make_database(server_dsn)
    folder = tmp_path_factory.mktemp("purpose")
    for name, fields in DOCUMENTS.items():
        text = json.dumps({"document": name, "root": "public.owner", "fields": fields})
        (folder / f"{name}.doc.yml").write_text(text)
    settings = "silver: {deletes: soft}\ngold: {documents: ['*.doc.yml']}\n"
    yield Source(spark, folder, dsn, (TABLES, LATER), settings)
    drop_database(server_dsn, dsn)


def verify(source: Source, *more: str) -> tuple[int, dict[str, Any]]:
    process = smelt_here("verify", source.file, *more, "--output", "json", folder=source.folder)
    assert process.stdout, process.stderr
    return process.returncode, json.loads(process.stdout)


def test_without_a_fault_all_is_equal_and_what_is_not_compared_is_said(source: Source) -> None:
    source.carry()
    open_gold(source.spark, source.pipeline, source.control).cycle()
    assert {loaded.name for loaded in load_documents_of(source.pipeline)} == set(DOCUMENTS)
    process = smelt_here("verify", source.file, folder=source.folder)
    assert process.returncode == 0, process.stdout + process.stderr
    lines = process.stdout.splitlines()
    for name in DOCUMENTS:
        assert any(line.startswith(f"gold.{name}: equal to a full rebuild") for line in lines)
        assert any(line.startswith(f"gold.{name}: equal to PostgreSQL's documents as of") for line in lines)
    left_out = [line for line in lines if line.startswith("  not compared")]
    for beginning, times in (
        ("  not compared with PostgreSQL: odd: the filter \"lower(owner) = 'c1'\" of public.item: ", 1),
        ("  not compared with PostgreSQL: 1 that differ read values that silver's types cannot hold: ", 1),
        (
            "  not compared: a query of this table also shows the rows of tables that inherit from the table",
            1,
        ),
        ("  not compared: 5 deleted rows, which silver keeps: the source does not have them", 4),
        ("  not compared: 20 deleted rows, ", 1),
    ):
        assert sum(line.startswith(beginning) for line in left_out) == times, (beginning, process.stdout)
    assert len(left_out) == 8
    assert lines[-1] == "not compared, as the lines above say: 40 rows, 1 document, 1 field"
    assert source.left() == []


def damage(source: Source) -> None:
    """Damage each table as one fault would leave the table."""
    # A server's files put back, rows of another history.
    source.harm("UPDATE {rewound} SET v = 'of another history' WHERE id = 1")
    source.harm("DELETE FROM {rewound} WHERE id = 2")
    source.harm(f"INSERT INTO {{rewound}} SELECT 21, v, {OWN} FROM {{rewound}} WHERE id = 3")
    # A partition truncated, rewritten or loaded without an event.
    source.harm(f"INSERT INTO {{parted}} SELECT id, 2, v, {OWN} FROM {{parted}} WHERE id < 4")
    source.harm("DELETE FROM {parted} WHERE id = 20")
    # A label and attributes traded, columns that swapped names, a rounded number, a value in the place of
    # NULL, blanks at the end of char(n); the name of a type that was renamed needs no hand.
    source.harm(
        "UPDATE {typed} SET m = IF(id = 1, 'happy', m), p = IF(id = 2, named_struct('a', p.b, 'b', p.a), p),"
        " a = IF(id = 3, b, a), b = IF(id = 3, a, b), n = IF(id = 4, round(n, 2), n),"
        " code = IF(id = 5, 'a', code), c = IF(id = 6, 'ab  ', c) WHERE id <= 6"
    )
    source.execute("ALTER TYPE shy RENAME TO bold")
    source.harm(
        "UPDATE {until} SET _unrepresentable = CASE id WHEN 1 THEN NULL"
        " WHEN 2 THEN map_filter(_unrepresentable, (k, v) -> k <> 'd')"
        " WHEN 3 THEN map_filter(_unrepresentable, (k, v) -> k <> 'f') ELSE _unrepresentable END,"
        " d = IF(id = 4, DATE'9999-12-31', d) WHERE id <= 4"
    )
    source.harm("RESTORE TABLE {restored} TO VERSION AS OF 1")
    # A deleted row that took the key of a live one, and became that row.
    source.harm(f"INSERT INTO {{keyed}} SELECT id, v, {OWN} FROM {{keyed}} WHERE id = 1")
    # Shapes: a column that did not come, a number that is text.
    for name in ("lacking", "astext"):
        source.harm(f"ALTER TABLE {{{name}}} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    source.harm("ALTER TABLE {lacking} DROP COLUMN w")
    source.harm("ALTER TABLE {astext} DROP COLUMN n")
    source.harm("ALTER TABLE {astext} ADD COLUMN n STRING")
    source.harm("UPDATE {astext} SET n = CAST(id AS STRING) || '.00'")
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


def test_each_fault_is_found(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(source)
    break_the_compiler(monkeypatch)
    code, parsed = verify(source)
    assert code == 1
    wrong = {table["name"]: table["counts"] for table in parsed["tables"] if not table["equal"]}
    not_compared = {table["name"]: table["reason"] for table in parsed["not_compared"]}
    assert wrong == {
        "rewound": {"missing": 1, "surplus": 1, "differs": 1},
        "parted": {"missing": 1, "surplus": 3},
        "typed": {"differs": 7},
        "until": {"differs": 4},
        "restored": {"surplus": 5, "differs": 4},
        "keyed": {"twice": 1},
        "lacking": {"differs": 20},
        "astext": {"differs": 20},
    }
    reasons = {
        "halved": "entry 2 of the table's log, the newest, is torn",
        "emptied": "entry 2 of the table's log, the newest, is torn",
    }
    assert not_compared.keys() == reasons.keys(), not_compared
    assert {name for name, reason in reasons.items() if reason not in not_compared[name]} == set(), (
        not_compared
    )
    assert parsed["left_out"]["tables"] == 2
    at_source = {
        document_result["document"]: document_result for document_result in parsed["documents_at_source"]
    }
    paths = {
        document_result: {
            wrong["difference"]["path"].partition("[")[0] for wrong in at_source[document_result]["wrong"]
        }
        for document_result in DOCUMENTS
    }
    assert paths == {
        "by_order": {"items"},
        "by_maximum": {"largest"},
        "by_count": {"amounts"},
        "by_text": {"items"},
        "with_lost": {"amounts"},
    }
    # A value that silver cannot hold withdraws the document that reads the value: the item is one of c3.
    lost = at_source["with_lost"]
    assert "[3]" not in [wrong["key"] for wrong in lost["wrong"]]
    assert (lost["compared"], lost["not_compared"]) == (29, "")
    assert lost["values_not_held"] == "public.item.valid (1)"
