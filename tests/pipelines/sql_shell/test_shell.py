"""`smelt sql` as people and scripts use it: real processes with a real Spark."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.pipelines.sql_shell.exports import Export
from deltasmelt.pipelines.terminal.arguments import RowFormat
from deltasmelt.silver.spark.tuning import settings
from tests.patience import wait_for
from tests.pipelines.in_process import smelt_here
from tests.pipelines.processes import Command, task_seconds
from tests.pipelines.sql_shell.pseudo_terminal import ROOT, Terminal
from tests.pipelines.sql_shell.small_lake import make_small_lake
from tests.pipelines.test_cli import one_message, smelt

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CROSS_JOIN = "SELECT sum(a.id * b.id) FROM range(1000000) a CROSS JOIN range(1000000) b;"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small_lake(tmp_path_factory.mktemp("shell"))


def executing(shell: Terminal) -> float:
    """Return the seconds that tasks of the shell's Spark have run."""
    return max(map(task_seconds, shell.children("java")), default=0)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_person_asks_errs_moves_cancels_and_leaves(file: Path) -> None:
    pager = file.parent / "pager.py"
    pager.write_text("import sys\nprint('paged', len(list(sys.stdin)), 'lines')\n")
    newest, first = "shop 0/200>", "shop 0/100>"
    logs = file.parent / 'the "blue" lögs'  # a name that Spark's launcher might split
    environment = {"PAGER": f"{sys.executable} {pager}", "SMELT_LOGS": str(logs)}
    with Terminal("sql", file, folder=file.parent, **environment) as shell:
        assert "pipeline shop, as of 0/200 (2026-01-01 13:00:00 UTC)" in shell.until_prompt(newest)
        assert "silver  orders        3   400" in shell.until_prompt(newest, r"\d silver.*")
        shell.type("SELECT count(*) AS n,", "\n         ->")
        assert "400  400" in shell.type("max(id) AS m FROM silver.orders;", "1 row")
        assert "400" in shell.type("SELECT count(*) FROM silver.late;", "1 row")

        screen = shell.until_prompt(newest, "SELEC 1; SELECT 2;")
        assert screen.count("error: [PARSE_SYNTAX_ERROR]") == 1
        assert "Traceback" not in screen
        assert "row" not in screen
        assert "did you mean 'silver.orders'?" in shell.until_prompt(newest, "SELECT * FROM silver.order;")

        shell.until_prompt(first, r"\cut 0/1ff")
        assert "200" in shell.type("SELECT count(*) FROM silver.orders;", "1 row")
        assert ("the table silver.late does not exist") in shell.until_prompt(
            first, "SELECT * FROM silver.late;"
        )

        for form in ("table", "csv"):
            shell.type(rf"\o {form}", f"printed as {form}")
            before = executing(shell)
            shell.type(CROSS_JOIN, ") b;")
            wait_for(lambda: executing(shell) > before + 0.5, 60)  # noqa: B023 - called within the turn
            shell.type("\x03", "cancelled", seconds=60)
        assert "seven\n7\n" in shell.until_prompt(first, "SELECT 7 AS seven;")
        shell.type(r"\o table", "printed as table")
        shell.type("SELECT 'unfinished", "->")
        shell.until_prompt(first, "\x03")

        shell.type("SELECT id FROM silver.orders LIMIT 1;", "1 row")
        screen = shell.until_prompt(newest, r"\watch 0.1 2")
        assert screen.count("UTC, as of 0/200 (2026-01-01 13:00:00 UTC)") == 2
        assert "paged 402 lines" in shell.type("SELECT id FROM silver.orders ORDER BY id;", "400 rows")
        shell.type(r"\x on", "one value per line: on")
        screen = shell.type("SELECT id, total FROM silver.orders WHERE id = 1;", "1 row")
        assert "id    | 1\ntotal | 1.50" in screen
        shell.type(r"\q", "")
        assert shell.ended() == 0
        assert shell.children("java") == []
        assert not set(shell.seen) & set("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")  # no line moves across the prompt
    assert [path.name for path in logs.glob("*/spark-*.log")] != []
    typed = (file.parent / "state" / "deltasmelt" / "sql-history" / "shop").read_text()
    assert "+SELECT count(*) AS n,\n+max(id) AS m FROM silver.orders;\n" in typed


REPORT = (
    "-- the report\n\\o csv\nSET TIME ZONE 'UTC';\n"
    "SELECT id, total, CAST(NULL AS STRING) AS none, '' AS empty, `note, odd`,\n"
    "  array(1, 2) AS list FROM silver.orders WHERE id <= 2 ORDER BY id;\n"
    "\\o json\nSELECT count(*) AS n FROM gold.customer;\n\\o table\n"
)


@pytest.mark.torture
@pytest.mark.spark
def test_ctrl_c_ends_a_script_and_its_jvm(file: Path) -> None:
    """The statement would run for days. `test_run` interrupts `smelt run`."""
    script = file.parent / "endless.sql"
    script.write_text(f"SELECT 1 AS one;\n{CROSS_JOIN}")
    with Command("sql", file, "-f", script, folder=file.parent) as sql:
        wait_for(lambda: any(task_seconds(pid) > 1 for pid in sql.family("java")), 280)
        sql.process.send_signal(signal.SIGINT)
        assert sql.wait(60) == 130, sql.text()
        wait_for(lambda: not sql.family(), 60)
    assert "one\n---\n  1\n" in sql.text()
    assert "interrupted\n" in sql.text()
    assert "Traceback" not in sql.text()


@pytest.mark.spark
def test_a_script_ends_at_its_first_error(file: Path, spark: SparkSession) -> None:
    """Every form of rows, at one cut."""
    assert spark is not None
    script = file.parent / "report.sql"
    script.write_text(f"{REPORT}SELECT 1 AS one; SELECT nme\nFROM silver.orders; SELECT 2")
    process = smelt_here("sql", file, "-f", script, "--as-of", "0/1ff", folder=file.parent)
    message = one_message(process)
    assert f"error: {script}:9 (statement 8): [UNRESOLVED_COLUMN" in message
    records, _, remaining = process.stdout.partition('{"n"')
    note = 'say "a"\nb'
    assert list(csv.reader(io.StringIO(records, newline=""))) == [
        ["id", "total", "none", "empty", "note, odd", "list"],
        ["1", "1.50", "", "", note, "[1,2]"],
        ["2", "2.50", "", "", note, "[1,2]"],
    ]
    assert f'{{"n"{remaining}'.splitlines() == ['{"n":200}', "one", "---", "  1"]


def test_a_pipe_of_meta_commands_needs_no_spark(file: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "deltasmelt", "sql", file],
        input="\\cut 0/1ff\n\\d silver.*\n\\q\n\\d nowhere\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert process.stdout.splitlines()[-1] == "silver  orders        3   200"
    assert process.stderr == ""


def test_a_statement_and_a_file_are_refused(file: Path) -> None:
    process = smelt("sql", file, "SELECT 1", "--file", "x.sql", folder=file.parent)
    assert (process.returncode, process.stderr.count("not both")) == (2, 1)


def test_exported_files_are_whole_or_absent(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql(
        "SELECT id, timestamp'2026-01-31 12:00:00.123456' AS at FROM range(0, 1000, 1, 4) ORDER BY id"
    )
    single_file, folder = tmp_path / "rows.parquet", tmp_path / "rows"
    assert Export(str(single_file), RowFormat.PARQUET).write(spark, frame) == f"{single_file}: 1,000 rows"
    assert (
        Export(str(folder), RowFormat.PARQUET).write(spark, frame.repartition(3)) == f"{folder}: 1,000 rows"
    )
    assert pq.read_table(single_file).schema.field("at").type == pq.read_table(folder).schema.field("at").type
    assert str(pq.read_table(single_file).schema.field("at").type) == "timestamp[us, tz=UTC]"
    assert pq.read_table(single_file)["id"].to_pylist() == list(range(1000))
    assert len(list(folder.glob("*.parquet"))) == 3

    lines = tmp_path / "rows.jsonl"
    export = Export(str(lines), RowFormat.JSON)
    assert export.write(spark, frame) == f"{lines}: 1,000 rows"
    assert json.loads(lines.read_text().splitlines()[7])["id"] == 7
    with pytest.raises(DefiniteError, match="already has the rows of an earlier statement"):
        export.write(spark, frame)
    with pytest.raises(ConfigurationError, match="already exists"):
        Export(str(lines), RowFormat.JSON)

    with settings(spark, {"spark.sql.files.maxRecordsPerFile": "300"}):
        split = tmp_path / "split.parquet"
        assert Export(str(split), RowFormat.PARQUET).write(spark, frame) == f"{split}: 1,000 rows"
        assert pq.read_metadata(split).num_rows == 1000
    for name, form in (("late.csv", RowFormat.CSV), ("late", RowFormat.PARQUET)):
        late = Export(str(tmp_path / name), form)
        (tmp_path / name).write_text("of another")
        with pytest.raises(ConfigurationError, match="by another program"):
            late.write(spark, spark.sql("SELECT 1 AS one"))
        assert (tmp_path / name).read_text() == "of another"
        (tmp_path / name).unlink()
    with pytest.raises(DefiniteError, match="several columns have the name id;"):
        Export(str(tmp_path / "twice.json"), RowFormat.JSON).write(
            spark, spark.sql("SELECT 1 AS id, 2 AS id")
        )
    split.unlink()

    failing = spark.sql("SELECT assert_true(id < 990) FROM range(0, 1000, 1, 4)")
    for form in (RowFormat.CSV, RowFormat.PARQUET):
        with pytest.raises(DefiniteError, match="is not true"):
            Export(str(tmp_path / "failed"), form).write(spark, failing)
    assert {path.name for path in tmp_path.iterdir()} == {"rows.parquet", "rows", "rows.jsonl"}
