"""Others who touch the lake between two windows: what does no harm, what is noticed, and what heals.

One lake of a real server has a table for each case. The commands that messages print are run as they are
printed, and `smelt verify` compares everything with the source at the end.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from bronze.lake.control_tables import ControlTables
from pipelines.settings import load_pipeline
from silver.cycle import Silver
from silver.run.spark_settings import settings
from silver.run.table_log import SilverLog
from tests.bronze.replaying import read_all
from tests.fix_spark import reading
from tests.pipelines.in_process import smelt_here

if TYPE_CHECKING:
    from subprocess import CompletedProcess

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.torture, pytest.mark.timeout(900)]

CHANGED: Final = ("restored", "deleted", "added", "kept")
"""Tables of which somebody changed rows."""
HARMLESS: Final = ("tidied", "unfed", "older", "emptied", "halved", "zeroed", "gone")
_FEW_TASKS: Final = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "2"}
DOCUMENTS: Final = ("unfed", "tidied", "emptied")


class Place:
    """A database, its lake, and what is done to both."""

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
        """Change a row of each table, add one to each, and have bronze hold that."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for table in (*CHANGED, *HARMLESS):
                connection.execute(f"UPDATE {table} SET note = '{note}' WHERE id = 1".encode())
                connection.execute(f"INSERT INTO {table} (note) VALUES ('{note}')".encode())
        read_all(self.pipeline.source, str(self.lake.path))

    def make(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for table in (*CHANGED, *HARMLESS):
                columns = "id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text"
                connection.execute(f"CREATE TABLE {table} ({columns})".encode())
                connection.execute(f"INSERT INTO {table} (note) VALUES ('a'), ('b'), ('c')".encode())
        read_all(self.pipeline.source, str(self.lake.path))

    def fold(self) -> None:
        silver = Silver(self.spark, self.lake, self.pipeline.silver, self.control)
        silver.cycle()
        silver.close()

    def smelt(self, command: str, *more: str) -> CompletedProcess[str]:
        done = smelt_here(command, self.file, *more, folder=self.folder)
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return done

    def by_hand(self, statement: str, table: str, layer: Any = "silver") -> None:
        # VACUUM would list the table's one folder by 10,000 tasks.
        with reading(self.spark), settings(self.spark, _FEW_TASKS):
            self.spark.sql(statement.format(t=self.lake.sql(layer, table))).collect()

    def log_of(self, table: str, layer: Any = "silver") -> list[Path]:
        return sorted(Path(self.lake.uri(layer, table), "_delta_log").glob("*.json"))

    def named(self) -> set[str]:
        """The tables of silver's newest cut."""
        cut = self.control.latest_cut("silver")
        assert cut is not None
        return set(cut.tables)

    def reasons(self) -> dict[str, tuple[str, str | None]]:
        """How each document was built last, and why."""
        runs = {one.name: one for one in reversed(self.control.runs("gold"))}
        return {name: (run.mode, run.reason) for name, run in runs.items()}


def test_what_others_do_is_noticed_or_harmless_and_what_is_printed_heals(  # noqa: PLR0915 - one world
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    place = Place(spark, tmp_path, database)
    place.make()
    place.fold()
    place.change("first")
    place.fold()
    older = Path(place.lake.uri("silver", "older"))
    shutil.copytree(older, tmp_path / "backup")
    place.change("second")
    place.fold()
    assert place.smelt("gold", "--until-caught-up").returncode == 0
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
    place.by_hand("UPDATE {t} SET note = 'mine' WHERE id = 3", "d_tidied", "gold")
    place.by_hand("RESTORE TABLE {t} TO VERSION AS OF 0", "d_emptied", "gold")
    # Files: nothing of it was seen by Spark when it starts again.
    shutil.rmtree(older)
    shutil.copytree(tmp_path / "backup", older)
    shutil.rmtree(place.lake.uri("silver", "gone"))
    for table, tear in (("emptied", 0), ("halved", 300)):
        entry = place.log_of(table)[-1]
        entry.write_bytes(entry.read_bytes()[:tear])
    entry = place.log_of("zeroed")[-1]
    entry.write_bytes(bytes(entry.stat().st_size))
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    for number in range(4):  # an older backup whose versions pass those of the cut, by others' commits
        place.by_hand(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('their.own' = '{number}')", "older")

    # A cycle without a window already notices all of it, and names no version that is gone.
    done = place.smelt("silver", "--until-caught-up")
    assert done.returncode == 3, done.stderr
    errors = {one.name: one for one in place.control.open_errors()}
    assert {one.code for one in errors.values()} == {"table-written-by-others"}
    assert set(errors) == {f"public.{name}" for name in CHANGED}
    assert "RESTORE" in errors["public.restored"].message
    assert place.named() == set(HARMLESS)
    place.change("fourth")
    assert place.smelt("silver", "--until-caught-up").returncode == 3
    assert place.named() == set(HARMLESS)
    log = SilverLog(place.lake)
    for cut in place.control.cuts("silver"):  # also those of before: no version that is lost, and came again
        for name in set(HARMLESS) & set(cut.tables):
            stored = log.read_at(name, cut.tables[name])
            assert stored is not None
            assert stored.mark == cut.marks[name], (name, cut.commit_lsn)
    done = place.smelt("gold", "--until-caught-up")
    assert done.returncode == 0, done.stderr
    reasons = place.reasons()
    assert "UPDATE" in str(reasons["d_tidied"][1])
    assert "RESTORE" in str(reasons["d_emptied"][1])
    assert reasons["d_unfed"][0] == "full"

    # The remedies as they are printed: each command of them, for the tables of its error.
    done = place.smelt("snapshot", "public.deleted")
    assert done.returncode == 0, done.stderr
    for name in ("restored", "added", "kept"):
        printed = re.search(
            rf"smelt rebuild FILE silver (public\.{name})", str(errors[f"public.{name}"].remedy)
        )
        assert printed is not None
        done = place.smelt("rebuild", "silver", printed[1])
        assert done.returncode == 0, done.stderr
    assert "smelt snapshot FILE public.deleted" in str(errors["public.deleted"].remedy)
    assert "smelt snapshot" not in str(errors["public.kept"].remedy), "a history is in no snapshot"
    place.change("fifth")
    done = place.smelt("silver", "--until-caught-up")
    assert done.returncode == 0, done.stderr
    assert place.control.open_errors() == []
    assert place.named() == {*HARMLESS, *CHANGED, "kept__history"}
    assert place.smelt("gold", "--until-caught-up").returncode == 0
    assert {mode for mode, _ in place.reasons().values()} == {"incremental"}, "the feed is on again"
    done = place.smelt("verify")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal to PostgreSQL") == len(place.named())
