"""A whole pipeline with odd names and texts in tables and documents, and with a lake at an odd path.

Names and texts pass through Spark SQL, PostgreSQL's SQL, paths and URIs; no step may misinterpret them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import folder_name, table_name
from deltasmelt.bronze.setup.slot import read_slot
from deltasmelt.pipelines.commands.context import open_gold
from deltasmelt.pipelines.commands.drop import run_drop
from deltasmelt.pipelines.commands.preview import preview_document
from deltasmelt.pipelines.commands.rebuild import rebuild_silver, run_rebuild
from deltasmelt.pipelines.health.status import read_status
from deltasmelt.pipelines.quality import run_quality
from deltasmelt.pipelines.runtime.maintenance import Maintenance
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.lake_sql import LakeSql
from deltasmelt.pipelines.terminal.output import Format, Output
from tests.fix_postgres import drop_database, make_database
from tests.fix_spark import reading, rows_of
from tests.silver.real_source import RealSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.pipelines.settings import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(900)]

PLACE = "my läke 100% #1?a=b+c ;'日\U0001f642"
HOSTILE = "${env:HOME} ${spark.app.name} ${x}'\"`\\--;/* \u202e\U0001f642\x01\n\t*/"
"""A text that PostgreSQL accepts and no SQL may interpret, also as a column's default."""

KEPT = TableName("public", "Order Details tä日\U0001f642")
ELSEWHERE = TableName("a/b ${env:HOME}", "--;/* \u202e\U0001f642 */")
LONGEST = "\"'`\\${x}..%2F/".ljust(61, "x") + ". "
CHANGED = [
    KEPT,
    ELSEWHERE,
    *(TableName("public", name) for name in ("../control/cuts", LONGEST)),
]
NAMES = [*CHANGED, *(TableName("public", name) for name in ("CON", "con"))]
"""Names of tables; the rows of the first tables change in the stream."""

DOCUMENTS = {
    "Odd": """
root: '"public"."Order Details tä日\U0001f642"'
where: "note <> '${env:HOME}'"
fields:
  - id
  - note
  - texts: {sql: "concat('${env:HOME} ${x}--;/* ', '*/ ''\U0001f642', note)"}
  - there: {one: '"a/b ${env:HOME}"."--;/* \u202e\U0001f642 */"', on: {'\U0001f642': id}, fields: [note]}
  - dots:
      many: 'public."../control/cuts"'
      on: {id: id}
      fields: [note, {said: {sql: "'${spark.app.name}'"}}]
  - plain: {one: public.con, on: {id: id}, fields: [note]}
""",
}


def mood_of(name: TableName) -> str:
    """Return the column of the enum's domain. A backtick in a column name disables the change feed."""
    return "${x}`;\u202e\n" if "`" in name.name else "${x};\u202e\n\\"


def table_of(name: TableName) -> str:
    key = "\U0001f642" if name == ELSEWHERE else "id"
    columns = f'"{key}" int PRIMARY KEY, note text, "{mood_of(name)}" public."od;d ${{x}}"'
    return (
        f"CREATE TABLE {name.quoted} ({columns}); "
        f"INSERT INTO {name.quoted} SELECT i, 'row ' || i, '${{env:HOME}}' FROM generate_series(1, 3) i"
    )


class Odd(RealSource):
    """The pipeline, with methods that change the source and run each stage."""

    def __init__(self, spark: SparkSession, dsn: str, folder: Path) -> None:
        super().__init__(spark, dsn, str(folder / "lake"), history=[KEPT.name], tables=["*.*"])
        self.file = folder / "pipeline.yml"
        folder.mkdir()
        self.file.write_text(
            f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: {self.source.slot}, publication: smelt, "
            "tables: ['*.*']}\nlake: {path: ./lake}\ngold: {documents: ['*.yaml']}\n"
            "silver: {history: [public.Order Details tä日\U0001f642]}\n"
        )
        for name, text in DOCUMENTS.items():
            (folder / f"{name}.yaml").write_text(f"document: {name}\n{text}")
        self.gold = open_gold(spark, self.pipeline, self.control)

    @property
    def pipeline(self) -> Pipeline:
        return load_pipeline(self.file)

    def carry(self) -> None:
        self.read()
        self.fold()
        self.gold.cycle()

    def folders(self, layer: str) -> set[str | None]:
        return {table_name(entry.name) for entry in (self.file.parent / "lake" / layer).iterdir()}


@pytest.fixture(scope="module")
def odd(spark: SparkSession, server_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Odd]:
    """Copy every table, change them in the stream, and build the documents."""
    dsn = make_database(server_dsn)
    odd = Odd(spark, dsn, tmp_path_factory.mktemp("odd") / PLACE)
    odd.play(
        f'CREATE SCHEMA "{ELSEWHERE.schema}"',
        """CREATE TYPE public."e'${x}" AS ENUM ('${env:HOME}', 'it''s \\ -- ; /*', 'it`s "')""",
        """CREATE DOMAIN public."od;d ${x}" AS public."e'${x}" CHECK (VALUE::text <> '--')""",
        *map(table_of, NAMES),
    )
    odd.carry()
    text = HOSTILE.replace("'", "''")
    odd.play(
        *(
            f"ALTER TABLE {name.quoted} ADD template text DEFAULT '{text}', ADD \"${{env:HOME}};--\" text;"
            f"UPDATE {name.quoted} SET note = '{text}', \"${{env:HOME}};--\" = template, "
            f"\"{mood_of(name)}\" = 'it''s \\ -- ; /*' WHERE note = 'row 1';"
            f"DELETE FROM {name.quoted} WHERE note = 'row 2'"
            for name in CHANGED
        )
    )
    odd.carry()
    yield odd
    odd.close()
    drop_database(server_dsn, dsn)


def test_silver_and_its_history_are_the_source(odd: Odd) -> None:
    assert odd.errors() == {}
    assert odd.differences(NAMES) == {}


def test_each_table_has_a_folder_within_its_layer(odd: Odd) -> None:
    names = {name.silver_name for name in NAMES}
    assert odd.folders("silver") == {*names, f"{KEPT.silver_name}__history"}
    assert odd.folders("gold") == set(DOCUMENTS)
    lake = odd.file.parent / "lake"
    layers = {entry.name for entry in lake.iterdir() if not entry.name.startswith(".")}
    assert layers == {"bronze", "control", "gold", "silver"}
    assert [entry.name for entry in odd.file.parent.parent.iterdir()] == [PLACE]
    assert (lake / "silver" / folder_name("../control/cuts")).is_dir()


def test_documents_hold_each_text_unchanged(odd: Odd) -> None:
    parsed = json.loads(str(preview_document(odd.spark, odd.pipeline, "Odd", ["1"])))
    fields = "id, note, texts, there, dots, plain"
    rows = rows_of(odd.spark, f"SELECT to_json(struct({fields})) FROM {odd.lake.sql('gold', 'Odd')}")
    built = {document["id"]: document for document in (json.loads(row[0]) for row in rows)}
    assert built[1] == parsed
    assert built.keys() == {1, 3}
    assert parsed == {
        "id": 1,
        "note": HOSTILE,
        "texts": f"${{env:HOME}} ${{x}}--;/* */ '\U0001f642{HOSTILE}",
        "there": {"note": HOSTILE},
        "dots": [{"note": HOSTILE, "said": "${spark.app.name}"}],
        "plain": {"note": "row 1"},
    }


def test_status_knows_every_table(odd: Odd) -> None:
    states = {table.name: table.state for table in read_status(odd.pipeline).tables}
    assert states == {str(name): "streaming" for name in NAMES}


def test_sql_knows_tables_by_their_names(odd: Odd) -> None:
    lake = LakeSql(odd.spark, odd.pipeline)

    def rows(statement: str) -> list[tuple[Any, ...]]:
        with reading(odd.spark):
            return [tuple(row) for row in lake.query(statement).collect()]

    assert rows(
        "SELECT '${env:HOME} silver.CON', d.note FROM silver.`Order Details tä日\U0001f642` AS d "
        "JOIN silver.`../control/cuts` c USING (id) JOIN silver.CON USING (id) JOIN gold.odd USING (id) "
        "WHERE id = 1 -- silver.`a/b`'"
    ) == [("${env:HOME} silver.CON", HOSTILE)]
    everything = " UNION ALL ".join(
        "SELECT count(*) FROM silver." + "`{}`".format(name.silver_name.replace("`", "``")) for name in NAMES
    )
    assert rows(everything) == [(2 if name in CHANGED else 3,) for name in NAMES]
    assert rows("SELECT count(*) FROM silver.`order details tä日\U0001f642__history`") == [(4,)]


SUITE = """
table: silver.CON
suite: "odd ${x}"
expectations:
  - expectation: expect_column_values_to_not_match_regex
    column: note
    kwargs: {regex: '[$][{]env:HOME[}] .*'}
  - expectation: expect_column_values_to_not_be_in_set
    column: note
    kwargs: {value_set: ["${x}'\\"`\\\\--;/* 🙂", "'); DROP TABLE x; --"]}
  - expectation: expect_foreign_key_to_hold
    kwargs: {columns: [id], references: 'silver.Order Details tä日🙂', referenced_columns: [id]}
    note: "fails ${x} <b>"
  - expectation: unexpected_rows_expectation
    note: fails too
    kwargs:
      unexpected_rows_query: |
        SELECT b.* FROM {batch} AS b JOIN {silver.../control/cuts} c ON b.id = c.id
        WHERE c.note LIKE '$' || '{{env:HOME}}%' AND '${{x}} --;' <> ''
"""


def test_quality_asks_every_table(odd: Odd) -> None:
    (odd.file.parent / "odd suite.yml").write_text(SUITE)
    odd.file.write_text(odd.file.read_text() + "quality: {suites: ['*suite.yml']}\n")
    report = odd.file.parent / "report.html"
    result = run_quality(odd.spark, odd.pipeline, report=report)
    assert (result.file_errors, [row.error for row in result.rows if row.error is not None]) == ((), [])
    assert [row.expectation.note for row in result.failed] == ["fails ${x} <b>", "fails too"]
    checked = {row.expectation.qualified for row in result.rows}
    assert checked == {
        "bronze.changes",
        *(f"silver.{name.silver_name}" for name in NAMES),
        *(f"gold.{name}" for name in DOCUMENTS),
    }
    assert result.left_out == ()
    page = report.read_text()
    assert "fails ${x} &lt;b&gt;" in page
    assert "${x} <b>" not in page


def test_upkeep_and_rebuilds_leave_tables_equal(odd: Odd) -> None:
    upkeep = Maintenance(odd.spark, odd.lake, odd.control, retention=0, documents=True)
    results = {work.name: work for work in upkeep.all_tables()}
    assert upkeep.failed == {}
    names = {*(name.silver_name for name in NAMES), f"{KEPT.silver_name}__history"}
    assert results.keys() == {*names, *DOCUMENTS}
    some = [ELSEWHERE, CHANGED[-1]]
    assert rebuild_silver(odd.spark, odd.pipeline, some, Output(Format.JSON)) == []
    run_rebuild(odd.pipeline, "gold", "Odd", Output(Format.JSON))
    assert not (odd.file.parent / "lake" / ".rebuild").exists()
    odd.cut = odd.control.latest_cut("silver")
    assert odd.differences(NAMES) == {}
    assert odd.errors() == {}


def test_drop_takes_the_slot_alone(odd: Odd) -> None:
    run_drop(odd.pipeline, Output(Format.JSON))
    assert read_slot(odd.connection, odd.source.slot) is None
    assert ControlTables(odd.pipeline.lake_address()).latest_cut("gold") is not None
