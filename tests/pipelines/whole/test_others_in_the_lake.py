"""Foreign changes to the lake between two windows: some are harmless, some are detected, some heal.

A lake of a real server has a table for each case. The test runs the commands that messages print, exactly as
printed. At the end `smelt verify` compares everything with the source.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_at
from deltasmelt.gold.builder.spark_settings import GOLD_APP
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.run.stored import SILVER_APP
from deltasmelt.silver.spark.tuning import settings
from tests.bronze.replaying import read_all
from tests.fix_spark import reading
from tests.pipelines.in_process import smelt_here

if TYPE_CHECKING:
    from subprocess import CompletedProcess

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Layer

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.torture, pytest.mark.timeout(2400)]

CHANGED: Final = ("restored", "deleted", "added", "kept")
"""Tables whose rows a foreign commit changed."""
HARMLESS: Final = ("tidied", "unfed", "older", "emptied", "halved", "zeroed", "gone")
BROKEN: Final = "broken"
"""A table with a torn entry in the middle of its log."""
TABLES: Final = (*CHANGED, *HARMLESS, BROKEN)
APPS: Final[dict[Layer, str]] = {"silver": SILVER_APP, "gold": GOLD_APP}
_FEW_TASKS: Final = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "2"}
DOCUMENTS: Final = ("unfed", "tidied", "emptied", "older", "halved", "zeroed")


class Place:
    """A database and its lake, with methods that change them."""

    def __init__(self, spark: SparkSession, folder: Path, dsn: str) -> None:
        self.spark, self.folder, self.dsn = spark, folder, dsn
        self.file = folder / "pipeline.yml"
        name = "others_" + str(conninfo_to_dict(dsn)["dbname"])
        self.file.write_text(
            f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: {name}, publication: {name}}}\n"
            "lake: {path: './lake'}\nsilver: {history: [public.kept]}\ngold: {documents: ['d_*.yml']}\n"
        )
        for document in DOCUMENTS:
            text = f"document: d_{document}\nroot: public.{document}\nfields: [id, note]\n"
            (folder / f"d_{document}.yml").write_text(text)
        self.pipeline = load_pipeline(self.file)
        self.lake = self.pipeline.lake_address()
        self.control = ControlTables(self.lake)

    def change(self, note: str) -> None:
        """Change a row of each table, add a row to each, and read the changes into bronze."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for table in TABLES:
                connection.execute(f"UPDATE {table} SET note = '{note}' WHERE id = 1".encode())
                connection.execute(f"INSERT INTO {table} (note) VALUES ('{note}')".encode())
        read_all(self.pipeline.source, str(self.lake.path))

    def make(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for table in TABLES:
                columns = "id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text"
                connection.execute(f"CREATE TABLE {table} ({columns})".encode())
                connection.execute(f"INSERT INTO {table} (note) VALUES ('a'), ('b'), ('c')".encode())
        read_all(self.pipeline.source, str(self.lake.path))

    def fold(self) -> None:
        silver = Silver(self.spark, self.lake, self.pipeline.silver, self.control)
        silver.cycle()
        silver.close()

    def smelt(self, command: str, *more: str) -> CompletedProcess[str]:
        process = smelt_here(command, self.file, *more, folder=self.folder)
        assert "Traceback" not in process.stdout + process.stderr, process.stderr
        return process

    def by_hand(self, statement: str, table: str, layer: Layer = "silver") -> None:
        # VACUUM would list the table's one folder by 10,000 tasks.
        with reading(self.spark), settings(self.spark, _FEW_TASKS):
            self.spark.sql(statement.format(t=self.lake.sql(layer, table))).collect()

    def log_of(self, table: str, layer: Layer = "silver") -> list[Path]:
        return sorted(Path(self.lake.uri(layer, table), "_delta_log").glob("*.json"))

    def require_own_marks(self, *damaged: str) -> None:
        """Check that each cut, old cuts included, names versions with the cut's marks: no repeated version.

        Args:
            damaged: tables whose versions cannot be read.
        """
        for layer, app in APPS.items():
            for cut in self.control.cuts(layer):
                for name, mark in (
                    (table_name, cut.marks[table_name]) for table_name in cut.marks.keys() - {*damaged}
                ):
                    stored = open_at(self.lake.uri(layer, name), cut.tables[name]).transaction_version(app)
                    assert stored == mark, (layer, name, cut.commit_lsn)

    def move_away(self, remedy: str | None) -> None:
        """Run the command of a remedy exactly as printed."""
        printed = re.search(r"mv (\S+) (\S+\.torn)\. ", str(remedy))
        assert printed is not None, remedy
        shutil.move(printed[1], printed[2])

    def named(self) -> set[str]:
        """Return the tables of silver's newest cut."""
        cut = self.control.latest_cut("silver")
        assert cut is not None
        return set(cut.tables)

    def reasons(self) -> dict[str, tuple[str, str | None]]:
        """Return the mode and reason of each document's last build."""
        runs = {run.name: run for run in reversed(self.control.runs("gold"))}
        return {name: (run.mode, run.reason) for name, run in runs.items()}


def test_foreign_changes_are_noticed_or_harmless_and_heal(  # noqa: PLR0915 - one world
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    """The printed remedies heal all damage."""
    place = Place(spark, tmp_path, database)
    place.make()
    place.fold()
    place.change("first")
    place.fold()
    older, older_document = (
        Path(place.lake.uri(*address)) for address in (("silver", "older"), ("gold", "d_older"))
    )
    shutil.copytree(older, tmp_path / "backup")
    place.change("second")
    place.fold()
    assert place.smelt("gold", "--until-caught-up").returncode == 0
    shutil.copytree(older_document, tmp_path / "backup_of_document")
    # The last window, which is in the newest cut, is lost from what is put back, restored or torn.
    place.change("third")
    place.fold()
    assert place.smelt("gold", "--until-caught-up").returncode == 0

    place.by_hand("RESTORE TABLE {t} TO VERSION AS OF 2", "restored")
    place.by_hand("DELETE FROM {t} WHERE id = 2", "deleted")
    place.by_hand("INSERT INTO {t} (id, note, _commit_lsn) VALUES (77, 'mine', 1)", "added")
    place.by_hand("UPDATE {t} SET note = 'mine' WHERE _valid_to IS NOT NULL", "kept__history")
    for statement in (
        "OPTIMIZE {t}",
        "VACUUM {t}",
        "ALTER TABLE {t} SET TBLPROPERTIES ('their.own' = 'x')",
        "ALTER TABLE {t} ADD COLUMNS (theirs INT)",
        "COMMENT ON TABLE {t} IS 'theirs'",
    ):
        place.by_hand(statement, "tidied")
    place.by_hand("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')", "unfed")
    for statement in (
        "UPDATE {t} SET note = 'mine' WHERE id = 3",
        "DELETE FROM {t} WHERE id = 1",
        "INSERT INTO {t} (id, note) VALUES (99, 'mine')",
    ):
        place.by_hand(statement, "d_tidied", "gold")
    place.by_hand("RESTORE TABLE {t} TO VERSION AS OF 0", "d_emptied", "gold")
    # Files: nothing of it was seen by Spark when it starts again.
    for folder, backup in ((older, "backup"), (older_document, "backup_of_document")):
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / backup, folder)
    shutil.rmtree(place.lake.uri("silver", "gone"))
    newest = [
        place.log_of(*address)[-1] for address in (("halved",), ("d_halved", "gold"), ("runs", "control"))
    ]
    for entry, size_left in ((place.log_of("emptied")[-1], 0), *((entry_cut, 300) for entry_cut in newest)):
        entry.write_bytes(entry.read_bytes()[:size_left])
    entry = place.log_of("zeroed")[-1]
    entry.write_bytes(bytes(entry.stat().st_size))
    for log in (place.log_of(BROKEN), place.log_of("d_zeroed", "gold")):
        log[-2].write_bytes(b"")
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    for number in range(4):  # an older backup whose versions pass those of the cut, by others' commits
        statement = f"ALTER TABLE {{t}} SET TBLPROPERTIES ('their.own' = '{number}')"
        place.by_hand(statement, "older")
        place.by_hand(statement, "d_older", "gold")

    # A cycle without a window already notices all of it, and names no version that is gone.
    process = place.smelt("silver", "--until-caught-up")
    assert process.returncode == 3, process.stderr
    errors = {error.name: error for error in place.control.open_errors()}
    assert {name: error.code for name, error in errors.items()} == {
        **{f"public.{name}": "table-written-by-others" for name in CHANGED},
        f"public.{BROKEN}": "log-entry-torn",
    }
    assert "RESTORE" in errors["public.restored"].message
    assert place.named() == set(HARMLESS)
    place.change("fourth")
    assert place.smelt("silver", "--until-caught-up").returncode == 3
    assert place.named() == set(HARMLESS)
    process = place.smelt("gold", "--until-caught-up")
    assert process.returncode == 3, process.stderr
    reasons = place.reasons()
    assert "UPDATE" in str(reasons["d_tidied"][1])
    assert "RESTORE" in str(reasons["d_emptied"][1])
    assert reasons["d_unfed"][0] == "full"
    (torn,) = (open_error for open_error in place.control.open_errors() if open_error.scope == "document")
    assert (torn.name, torn.code) == ("d_zeroed", "log-entry-torn")
    place.move_away(torn.remedy)
    process = place.smelt("gold", "--until-caught-up")
    assert process.returncode == 0, process.stderr
    place.require_own_marks(BROKEN)

    # The remedies as they are printed: each command of them, for the tables of its error.
    process = place.smelt("snapshot", "public.deleted")
    assert process.returncode == 0, process.stderr
    for name in ("restored", "added", "kept"):
        printed = re.search(
            rf"smelt rebuild FILE silver (public\.{name})", str(errors[f"public.{name}"].remedy)
        )
        assert printed is not None
        process = place.smelt("rebuild", "silver", printed[1])
        assert process.returncode == 0, process.stderr
    assert "smelt snapshot FILE public.deleted" in str(errors["public.deleted"].remedy)
    assert "smelt snapshot" not in str(errors["public.kept"].remedy), "a history is in no snapshot"
    place.move_away(errors[f"public.{BROKEN}"].remedy)
    place.change("fifth")
    process = place.smelt("silver", "--until-caught-up")
    assert process.returncode == 0, process.stderr
    assert place.control.open_errors() == []
    assert place.named() == {*TABLES, "kept__history"}
    assert place.smelt("gold", "--until-caught-up").returncode == 0
    assert {mode for mode, _ in place.reasons().values()} == {"incremental"}, "the feed is on again"
    place.require_own_marks()
    process = place.smelt("verify")
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.count(": equal to PostgreSQL as of") == len(place.named()), process.stdout
    assert process.stdout.count(": equal to a full rebuild") == len(DOCUMENTS), process.stdout
