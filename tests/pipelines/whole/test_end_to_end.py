"""A real server through bronze and silver: after every step silver equals the source, value by value.

The histories are the SQL files in `scenarios`: a schema, then steps, each a list of transactions separated by
empty lines. The selected histories play in one database, and one pipeline carries them. Bronze and silver are
cut after every step, so each step is one window. After the last step Spark reads every table. After earlier
steps the test reads the files of the cut's version.
"""

from __future__ import annotations

import math
from collections import Counter
from datetime import date
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pydantic import SecretStr

from deltasmelt.bronze.config.sections import BronzeSettings, SnapshotSettings, SourceSettings
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.reader.reader import Reader
from deltasmelt.pipelines.health.status import read_status
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.settings import SilverSettings
from tests.fix_postgres import drop_database, make_database
from tests.marks import selected
from tests.pipelines.source_rows import source_rows
from tests.silver.stored import rows_by_spark, stored_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut
    from tests.pipelines.source_rows import Row

SCENARIOS = {
    path.stem: path.read_text() for path in sorted((Path(__file__).parents[1] / "scenarios").glob("*.sql"))
}
LONG = {"added_defaults", "changed_shapes", "partitions_without_leaf", "retyped"}
"""Scenarios of many tables for `make torture`; a cheaper test holds each claim too."""

pytestmark = pytest.mark.timeout(1200)  # all histories are played in one fixture

_EXACT = Context(prec=1100)
"""A precision above the number of digits of any numeric in the scenarios."""

ALIKE = {"typed_alike"}
"""Tables of row pairs, one row by snapshot and one by stream; the test compares the rows of a pair."""

SMALL_FLUSH = 200_000  # bytes; the large transaction has many times this


def history(text: str) -> tuple[str, list[list[str]]]:
    """Return a scenario file's schema, and the transactions of each step."""
    schema, *steps = text.split("--- step\n")
    return schema, [[statement for statement in step.split("\n\n") if statement.strip()] for step in steps]


class Flow:
    """A database, its pipeline, and the differences found after each step."""

    def __init__(self, spark: SparkSession, dsn: str, lake: Lake) -> None:
        self.spark = spark
        self.lake = lake
        self.source = SourceSettings(
            dsn=SecretStr(dsn), slot="e2e_" + dsn.rsplit("=", 1)[-1][-10:], publication="e2e", tables=["*.*"]
        )
        self.control = ControlTables(lake)
        self.silver = Silver(spark, lake, SilverSettings(), self.control)
        self.connection = connect(self.source)
        self.connection.execute("SET search_path = public")
        self.tables: dict[TableName, str] = {}
        self.names: list[set[str]] = []
        self.differences: dict[tuple[int, str], str] = {}
        self.equal: dict[tuple[TableName, bool], tuple[int, str]] = {}
        self.cuts: list[Cut] = []

    def carry(self) -> Cut:
        """Read up to the current end of the log, fold, and return the cut."""
        now = self.connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert now is not None
        until = Lsn.parse(now[0])
        reader = Reader(
            "e2e",
            self.source,
            self.lake,
            BronzeSettings(flush_bytes=SMALL_FLUSH, flush_interval=0.2),
            SnapshotSettings(workers=2, chunk_rows=1000),
        )
        reader.run(until=until)
        cut = self.silver.cycle()
        assert cut is not None
        assert cut.commit_lsn >= until - 1
        self.cuts.append(cut)
        return cut

    def play(self, transactions: list[str]) -> None:
        for transaction in transactions:
            self.connection.execute(transaction.encode())

    def note_tables(self, scenario: str) -> None:
        """Assign new and renamed tables to the scenario; forget dropped tables."""
        tables = user_tables(self.connection)
        self.tables = {table: self.tables.get(table, scenario) for table in tables}

    def compare(self, step: int, cut: Cut, *, by_spark: bool = True) -> None:
        """Record, for each table, the first differences between silver at this cut and the source.

        Without `by_spark` Spark reads only the tables whose files alone do not determine the rows.
        """
        self.names.append({table.silver_name for table in self.tables})
        for table, scenario in self.tables.items():
            if table.name in ALIKE:
                continue
            differing = self.difference(table, cut, by_spark=by_spark)
            if differing:
                self.differences[step, scenario] = f"{table} after step {step}: {differing}"

    def difference(self, table: TableName, cut: Cut, *, by_spark: bool = True) -> str:
        """Return the first differences between a table at this cut and the source."""
        version = cut.tables.get(table.silver_name)
        if version is None:
            return f"the cut of {cut.commit_lsn} does not name it"
        rows = source_rows(self.connection, table)
        if self.equal.get((table, by_spark)) == (version, repr(rows)):
            return ""  # the same version beside the same rows as when they were compared
        silver = None if by_spark else stored_rows(self.lake, table.silver_name, version)
        if silver is None:
            silver = rows_by_spark(self.spark, version_as_of(self.lake, table.silver_name, version))
        text = difference(silver, rows)
        if not text:
            self.equal[table, by_spark] = version, repr(rows)
        return text


def version_as_of(lake: Lake, name: str, version: int) -> str:
    """Return SQL for a version of a silver table, without time travel for the newest version."""
    log = Path(lake.uri("silver", name)) / "_delta_log"
    newest = max((int(entry.stem) for entry in log.glob("*.json") if entry.stem.isdigit()), default=-1)
    return lake.sql("silver", name) + ("" if version == newest else f" VERSION AS OF {version}")


def difference(held: list[dict[str, Any]], rows: list[Row]) -> str:
    silver = [
        {
            name: (comparable(value), (row["_unrepresentable"] or {}).get(name))
            for name, value in row.items()
            if not name.startswith("_") and (not rows or name in rows[0])  # silver keeps dropped columns
        }
        for row in held
    ]
    source = [{name: (comparable(value), text) for name, (value, text) in row.items()} for row in rows]
    ours, theirs = Counter(map(repr, map(ordered, silver))), Counter(map(repr, map(ordered, source)))
    missing, extra = theirs - ours, ours - theirs
    if not missing and not extra:
        return ""
    first = [[text[:600] for text in list(rows)[:2]] for rows in (missing, extra)]
    return f"missing {first[0]}, extra {first[1]}"


def ordered(row: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(row.items())


def comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, Decimal) and value.is_finite():
        return value.normalize(_EXACT)  # -1.0E-38 is -1E-38
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if isinstance(value, dict):
        return {name: comparable(value[name]) for name in sorted(value)}  # jsonb has an order of its own
    return value


@pytest.fixture(scope="module")
def flow(
    spark: SparkSession,
    server_dsn: str,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Flow]:
    """Play the selected scenarios to their end, and compare after each step."""
    names = selected(request, "scenario") or {*SCENARIOS}
    dsn = make_database(server_dsn)
    flow = Flow(spark, dsn, Lake(path=str(tmp_path_factory.mktemp("e2e") / "lake")))
    histories = {name: history(text) for name, text in SCENARIOS.items() if name in names}
    for name, (schema, _) in histories.items():
        flow.play([schema])
        flow.note_tables(name)
    flow.compare(0, flow.carry(), by_spark=False)
    last = max(len(steps) for _, steps in histories.values())
    for step in range(1, last + 1):
        for name, (_, steps) in histories.items():
            if step <= len(steps):
                flow.play(steps[step - 1])
                flow.note_tables(name)
        flow.compare(step, flow.carry(), by_spark=step == last)
    yield flow
    flow.connection.close()
    drop_database(server_dsn, dsn)


def user_tables(connection: psycopg.Connection[Any]) -> list[TableName]:
    rows = connection.execute(
        "SELECT nspname, relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace "
        "WHERE relkind IN ('r', 'p') "
        "AND NOT relispartition AND nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'"
    )
    return [TableName(schema, name) for schema, name in rows]


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(name, marks=[pytest.mark.torture] if name in LONG else []) for name in SCENARIOS],
)
def test_silver_equals_the_source_after_every_step(flow: Flow, scenario: str) -> None:
    texts = [text for (_, name), text in flow.differences.items() if name == scenario]
    assert not texts, "\n".join(texts)


@pytest.mark.spark
@pytest.mark.postgres
def test_no_table_was_stopped(flow: Flow) -> None:
    assert flow.control.open_errors() == []


@pytest.mark.spark
@pytest.mark.postgres
def test_every_cut_names_every_table(flow: Flow) -> None:
    assert [set(cut.tables) for cut in flow.cuts] == flow.names
    assert len({cut.commit_lsn for cut in flow.cuts}) == len(flow.cuts)


@pytest.mark.spark
@pytest.mark.postgres
def test_status_calls_every_table_streaming(flow: Flow, tmp_path: Path) -> None:
    source = flow.source.dsn
    assert source is not None
    file = tmp_path / "pipeline.yml"
    file.write_text(
        f"pipeline: e2e\nsource: {{dsn: '{source.get_secret_value()}', slot: {flow.source.slot}, "
        f"publication: e2e, tables: ['*.*']}}\nlake: {{path: {flow.lake.path}}}\n"
    )
    states = {table.name: table.state for table in read_status(load_pipeline(file)).tables}
    assert {name: states.get(str(name)) for name in flow.tables} == dict.fromkeys(flow.tables, "streaming")


LOST_IN_PAIRS = {"dr", "lb", "md", "wide", "free", "anum", "ats"}
"""Columns of the third row with a value that the Spark type cannot represent."""


@pytest.mark.spark
@pytest.mark.postgres
def test_the_stream_gives_the_values_of_the_snapshot(flow: Flow) -> None:
    version = flow.cuts[-1].tables["typed_alike"]
    frame = flow.spark.sql(
        f"SELECT * FROM {flow.lake.sql('silver', 'typed_alike')} VERSION AS OF {version} ORDER BY id"
    )
    rows = [
        {name: value for name, value in row.asDict(recursive=True).items() if not name.startswith("_commit")}
        for row in frame.collect()
    ]
    assert [row.pop("id") for row in rows] == [1, 2, 3, 4]
    assert repr(rows[0]) == repr(rows[1])
    assert repr(rows[2]) == repr(rows[3])
    assert rows[0]["_unrepresentable"] is None
    assert set(rows[2]["_unrepresentable"]) == LOST_IN_PAIRS
    assert all(rows[2][name] is None for name in LOST_IN_PAIRS)
    assert [name for name, value in rows[0].items() if value is None] == ["an", "_unrepresentable"]
    assert rows[0]["h"] == {"a": "1", "b": None, 'q"\\': ""}
    assert rows[0]["v"] == [1.0, 2.5, pytest.approx(-3e-05)]
    assert (rows[0]["pc"], rows[0]["free"][0]) == (["ab", None, "", " c"], Decimal("1.1"))
    assert (rows[0]["d"], rows[0]["ad"]) == (Decimal("1.500"), [Decimal("1.500"), None])
    assert rows[0]["n"] == {
        "p": {"a": 1, "b": 'x, "y"'},
        "ps": [{"a": 1, "b": "a"}, None],
        "d": Decimal("2.500"),
        "m": "sad",
        "during": {
            "lower": date(2024, 1, 1), "upper": date(2024, 2, 1), "lower_inc": True, "upper_inc": False,
            "empty": False,
        },
        'of"all': ['q"\\', None, "NULL"],
    }  # fmt: skip


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.torture
def test_columns_with_defaults_cost_no_copy(flow: Flow) -> None:
    changes = DeltaTable(flow.lake.uri("bronze", "changes")).to_pyarrow_table(columns=["table_name", "op"])
    copied = [row["table_name"] for row in changes.to_pylist() if row["op"] == "snapshot_end"]
    copied_again = {name for name in copied if name.startswith("defaulted") and copied.count(name) > 1}
    # VACUUM FULL and TRUNCATE beside an added column cannot be told from a rewrite.
    assert copied_again == {"defaulted", "defaulted_emptied"}


@pytest.mark.postgres
def test_bronze_holds_every_change_once_in_commit_order(flow: Flow) -> None:
    changes = DeltaTable(flow.lake.uri("bronze", "changes")).to_pyarrow_table(
        columns=["commit_lsn", "seq", "op", "end_of_tx"]
    )
    stream = [row for row in changes.to_pylist() if not row["op"].startswith("snapshot")]
    by_transaction: dict[int, list[tuple[int, bool]]] = {}
    for row in stream:
        by_transaction.setdefault(row["commit_lsn"], []).append((row["seq"], row["end_of_tx"]))
    for rows in by_transaction.values():
        assert sorted(rows) == [(seq, seq == len(rows) - 1) for seq in range(len(rows))]
