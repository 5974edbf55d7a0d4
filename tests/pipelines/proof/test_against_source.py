"""`smelt verify` of silver against a real server: equal tables pass, each kind of damage is found."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.verify.rows import KINDS
from tests.bronze.replaying import read_all
from tests.fix_postgres import drop_database, make_database
from tests.fix_spark import reading, signed
from tests.pipelines.in_process import smelt_here

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.usefixtures("interpreted")]

_SCENARIOS = Path(__file__).parents[1] / "scenarios"

TABLES = """
CREATE TABLE cells (id int PRIMARY KEY, note text, other text, f float8, n numeric(8,2), tags int[]);
INSERT INTO cells SELECT i, 'n' || i, NULL, 0, i, ARRAY[i, NULL] FROM generate_series(1, 200) i;
CREATE TABLE counted (a int, b text, v text, PRIMARY KEY (a, b));
INSERT INTO counted SELECT i, 'b' || i, 'v' FROM generate_series(1, 200) i;
CREATE TABLE kept (id int PRIMARY KEY, v text);
INSERT INTO kept SELECT i, 'v' || i FROM generate_series(1, 50) i;
CREATE TABLE large (id bigint PRIMARY KEY, out text, v int);
ALTER TABLE large ALTER out SET STORAGE EXTERNAL;
INSERT INTO large SELECT i, repeat(i::text, 2000), 0 FROM generate_series(1, 40) i;
CREATE TABLE nothing (id int PRIMARY KEY, v text);
"""

LATER = """
UPDATE large SET v = id;
UPDATE large SET id = -id WHERE id < 10;
DELETE FROM counted WHERE a <= 20;
UPDATE kept SET v = 'w' WHERE id % 2 = 0;
DELETE FROM kept WHERE id > 40;
INSERT INTO nothing SELECT i, 'late' FROM generate_series(1, 5) i;
TRUNCATE nothing;
INSERT INTO nothing VALUES (1, 'after');
"""


class Source:
    """A database with a pipeline file and a lake; silver and bronze are both behind the database.

    Args:
        statements: SQL before the first load, and SQL after the load.
        settings: additional sections of the pipeline file.
    """

    def __init__(
        self, spark: SparkSession, folder: Path, dsn: str, statements: tuple[str, str], settings: str
    ) -> None:
        self.folder, self.dsn = folder, dsn
        self.spark = spark
        self.file = folder / "pipeline.yml"
        self.name = "verify_" + str(conninfo_to_dict(dsn)["dbname"])
        self.file.write_text(
            f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: {self.name}, publication: {self.name}}}\n"
            f"lake: {{path: './lake'}}\nbronze: {{heartbeat: 1s}}\nsnapshot: {{chunk_rows: 1000}}\n{settings}"
        )
        self.pipeline = load_pipeline(self.file)
        self.lake = self.pipeline.lake_address()
        self.control = ControlTables(self.lake)
        self.execute(statements[0])
        self.carry()
        self.execute(statements[1])

    def execute(self, statements: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statements.encode())
            return cursor.fetchall() if cursor.description else []

    def carry(self) -> None:
        read_all(self.pipeline.source, str(self.lake.path))
        silver = Silver(self.spark, self.lake, self.pipeline.silver, self.control)
        silver.cycle()
        silver.close()

    def harm(self, statement: str) -> None:
        """Run a statement on silver's tables, as a user could manually; ``{cells}`` stands for a table."""
        with reading(self.spark), signed(self.spark):
            self.spark.sql(re.sub(r"\{(\w+)\}", lambda found: self.lake.sql("silver", found[1]), statement))

    def verify(self, *more: str) -> tuple[int, dict[str, Any]]:
        """Run `smelt verify`; return the exit code, and the findings by table."""
        process = smelt_here("verify", self.file, *more, "--output", "json", folder=self.folder)
        assert "Traceback" not in process.stderr, process.stderr
        assert process.stdout, process.stderr
        parsed = json.loads(process.stdout)
        assert parsed["not_compared"] == [], parsed
        return process.returncode, {table["name"]: table for table in parsed["tables"]}

    def left(self) -> list[tuple[Any, ...]]:
        """Return slots and sessions of a comparison that still exist at the server."""
        return self.execute(
            "SELECT slot_name::text FROM pg_replication_slots WHERE slot_name LIKE 'smelt_tmp%' "
            "AND database = current_database() UNION ALL SELECT application_name FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'deltasmelt verify%'"
        )


@dataclass
class Shown:
    """A table or document that `smelt verify` reports as unequal.

    Attributes:
        headline: the first line.
        counts: number of rows, by kind of difference.
        rows: columns of the shown rows, by key and kind.
        places: the shown documents, each with the key and the first different field.
    """

    headline: str
    counts: dict[str, int] = field(default_factory=dict)
    rows: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    places: set[tuple[str, str]] = field(default_factory=set)


def unequal(report: str) -> dict[str, Shown]:
    """Return what a report shows as unequal, by name; of two results for one name the first."""
    kinds = {text: kind for kind, text in KINDS.items()}
    found: dict[str, Shown] = {}
    shown, cells = Shown(""), set[str]()
    for line in report.splitlines():
        if name := re.match(r"(\w+\.\w+): ", line):
            shown = Shown(line)
            if ": not equal to " in line:
                found.setdefault(name[1], shown)
        elif count := re.fullmatch(r"  ([\d,]+) rows?: (.*)", line):
            shown.counts[kinds[count[2]]] = int(count[1].replace(",", ""))
        elif place := re.match(r"  (\S+) differs at (\w+)", line):
            shown.places.add((place[1], place[2]))
        elif row := re.fullmatch(r"  (\{.*\}) (.*)", line):
            cells = shown.rows.setdefault((row[1], kinds[row[2]]), set())
        elif cell := re.match(r"    (\w+): .* at the source, ", line):
            cells.add(cell[1])
    return found


@pytest.fixture(scope="module")
def source(
    spark: SparkSession, server_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Source]:
    dsn = make_database(server_dsn)
    first, *steps = (_SCENARIOS / "values_of_every_type.sql").read_text().split("--- step\n")
    settings = "silver: {history: [public.kept]}\n"
    folder = tmp_path_factory.mktemp("proof")
    yield Source(spark, folder, dsn, (TABLES + first, LATER + "".join(steps)), settings)
    drop_database(server_dsn, dsn)


def test_every_type_is_equal_with_silver_behind(source: Source) -> None:
    before = source.control.latest_cut("silver")
    process = smelt_here("verify", source.file, folder=source.folder)
    assert process.returncode == 0, process.stdout + process.stderr
    lines = process.stdout.splitlines()
    (not_compared,) = (line for line in lines if line.startswith("  not compared: "))
    ended = re.fullmatch(r"  not compared: (\d+) ended versions, which only silver has", not_compared)
    assert ended is not None
    assert int(ended[1]) >= 30, "20 that an UPDATE ended, and 10 that a DELETE ended"
    assert lines[lines.index(not_compared) - 1].startswith("silver.kept__history: equal to PostgreSQL as of ")
    assert lines.pop() == f"not compared, see the lines above: {ended[1]} rows"
    lines.remove(not_compared)
    names = {"cells", "counted", "kept", "kept__history", "large", "nothing", "typed", "typed_alike"}
    assert {line.partition(":")[0] for line in lines} == {f"silver.{name}" for name in names}
    assert all(": equal to PostgreSQL as of " in line for line in lines)
    assert len({line.partition(" as of ")[2].partition(";")[0] for line in lines}) == 1
    assert "silver.counted: equal to PostgreSQL as of" in process.stdout
    assert any(line.startswith("silver.counted") and line.endswith("; 180 rows") for line in lines)
    assert source.control.latest_cut("silver") == before, "silver is as it was"
    assert source.left() == []
    assert not (source.folder / "lake" / "_verify").exists()


def test_a_sample_has_the_same_keys_each_time(source: Source) -> None:
    code, tables = source.verify("--sample", "0.25", "--table", "public.c*")
    assert (code, set(tables)) == (0, {"cells", "counted"})
    rows = {name: table["source_rows"] for name, table in tables.items()}
    assert 20 < rows["cells"] < 80
    assert 15 < rows["counted"] < 75
    second_run = source.verify("--sample", "0.25", "--table", "public.counted", "--rate", "50MB")[1]
    assert second_run["counted"]["source_rows"] == rows["counted"]


def test_each_kind_of_harm_is_found_and_repaired(source: Source) -> None:
    source.carry()
    source.harm(
        "UPDATE {cells} SET note = CASE id WHEN 1 THEN '' WHEN 2 THEN NULL ELSE note END,"
        " other = IF(id = 2, note, other), f = IF(id = 3, double('-0.0'), f),"
        " tags = IF(id = 4, array(NULL, 4), tags), n = IF(id = 6, n + 0.01, n),"
        " _unrepresentable = IF(id = 5, map('n', 'NaN'), _unrepresentable) WHERE id <= 6"
    )
    source.harm("DELETE FROM {counted} WHERE a = 100")
    source.harm(
        "INSERT INTO {counted} SELECT * FROM {counted} WHERE a = 101 "
        "UNION ALL SELECT 7, 'b7', v, _commit_lsn, _commit_ts, _unrepresentable FROM {counted} WHERE a = 102"
    )
    source.harm("UPDATE {counted} SET _commit_lsn = 9223372036854775807 WHERE a = 103")
    source.harm("DELETE FROM {large} WHERE id = -3")
    source.harm(
        "UPDATE {kept__history} SET v = IF(id = 3, 'forged', v),"
        " _valid_to_lsn = IF(id = 2, 9223372036854775806, _valid_to_lsn)"
        " WHERE id = 3 OR (id = 2 AND _valid_to_lsn IS NOT NULL)"
    )
    names = [f"public.{name}" for name in ("cells", "counted", "large", "kept")]
    asked = [word for name in names for word in ("--table", name)]
    process = smelt_here("verify", source.file, *asked, "--repair", folder=source.folder)
    wrong = unequal(process.stdout)
    assert {name.removeprefix("silver."): shown.counts for name, shown in wrong.items()} == {
        "cells": {"differs": 6},
        "counted": {"twice": 1, "missing": 1, "surplus": 1, "lsn": 1},
        "large": {"missing": 1},
        "kept__history": {"differs": 1, "versions": 1},
    }
    assert wrong["silver.cells"].rows == {
        (f'{{"id":{number}}}', "differs"): columns
        for number, columns in enumerate(
            ({"note"}, {"note", "other"}, {"f"}, {"tags"}, {"_unrepresentable"}), start=1
        )
    }
    assert wrong["silver.counted"].rows.keys() == {
        ('{"a":7,"b":"b7"}', "surplus"), ('{"a":100,"b":"b100"}', "missing"),
        ('{"a":101,"b":"b101"}', "twice"), ('{"a":103,"b":"b103"}', "lsn"),
    }  # fmt: skip
    assert '  {"id":1} differs\n    note: "n1" at the source, "" in silver\n' in process.stdout
    assert "  remedy: smelt verify FILE --table public.cells --repair\n" in process.stdout
    assert "resnapshotted from the source: public.cells, public.counted" in process.stderr
    # A resnapshot ends versions, and alters none that ended.
    assert process.returncode == 1
    assert "remedy: smelt rebuild FILE silver kept\n" in process.stdout
    for name in ("cells", "counted", "large", "kept"):
        assert f"silver.{name}: equal to PostgreSQL" in process.stdout


def test_dropped_and_new_columns_are_not_compared(source: Source) -> None:
    source.execute("ALTER TABLE cells DROP COLUMN other")
    source.execute("ALTER TABLE nothing ADD COLUMN later int")
    process = smelt_here(
        "verify", source.file, "--table", "public.cells", "--table", "public.nothing", folder=source.folder
    )
    assert process.returncode == 1
    assert "silver.cells: equal to PostgreSQL" in process.stdout
    assert "  not compared: column other: the source has no such column\n" in process.stdout
    assert "not compared, see the lines above: 1 table, 1 column\n" in process.stdout
    assert "not selected: silver.counted, silver.kept, silver.kept__history, silver.large" in process.stdout
    assert (
        "silver.nothing: not compared: silver has no column later yet; silver gets the new shape after "
    ) in process.stdout
    assert "or by `smelt snapshot FILE public.nothing`\n" in process.stdout
    error = OpenError("table", "public.cells", "table-failed", "a disk failed", "mend it")
    source.control.open_error(error)
    process = smelt_here("verify", source.file, "--table", "public.cells", folder=source.folder)
    source.control.close_errors("table", "public.cells")
    assert process.returncode == 1
    assert "silver.cells: not compared: an error has stopped the table: a disk failed\n" in process.stdout


def test_what_cannot_be_compared_fails_the_proof(source: Source) -> None:
    source.execute("CREATE TABLE keyless (v int)")
    process = smelt_here("verify", source.file, "--table", "public.keyless", folder=source.folder)
    source.execute("DROP TABLE keyless")
    assert process.returncode == 1
    assert "silver.keyless: not compared: " in process.stdout
    process = smelt_here("verify", source.file, "--table", "public.cell", folder=source.folder)
    assert process.returncode == 1
    assert "did you mean public.cells?" in process.stderr
