"""A large table is folded while cycles continue: the remaining tables' cuts are not delayed."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from deltasmelt.bronze import backoff
from deltasmelt.bronze.errors import TableError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.gold.cycle import Gold
from deltasmelt.pipelines.runtime.stages import Stages
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.silver import cycle as silver_cycle
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.run import bronze_window, long_work, worklist
from tests.fix_spark import rows_of
from tests.gold.shop_documents import document
from tests.patience import wait_for
from tests.silver.histories import INT, TEXT, BronzeWriter, change, relation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut, Run
    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.gold.language.document import Document
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.silver.plan.activity import Work

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

COLUMNS = [("id", INT), ("note", TEXT)]
LARGE = relation("large", COLUMNS, ["id"], relation_id=1)
CALM = relation("calm", COLUMNS, ["id"], relation_id=2)
NAME = TableName("public", "large")
MANY = 50


def pipeline_of(path: str) -> Pipeline:
    """Return a pipeline whose source no test contacts."""
    file = Path(path).with_suffix(".yml")
    source = "source: {dsn: 'postgresql://127.0.0.1:1/x', slot: s, publication: p}"
    file.write_text(f"pipeline: p\n{source}\nlake: {{path: '{path}'}}\n")
    return load_pipeline(file)


class Gate:
    """A gate that starts long work on the test's signal, with as many failures as the test requires."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.fails: list[Exception] = []
        self.begun = 0

    def pass_through(self, run: Any, silver: Silver, work: Work, bronze: Table) -> Run:
        self.begun += 1
        assert self.open.wait(120)
        if self.fails:
            raise self.fails.pop()
        result: Run = run(silver, work, bronze)
        return result

    def let_pass(self, begun: long_work.LongWork) -> None:
        """Let the begun work end, and hold the next work."""
        self.open.set()
        wait_for(lambda: begun.has_ended, 60)
        self.open.clear()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate_made, run = Gate(), Silver._run_long
    monkeypatch.setattr(Silver, "_run_long", lambda *of: gate_made.pass_through(run, *of))
    monkeypatch.setattr(long_work, "LONG", MANY)
    monkeypatch.setattr(long_work, "LONG_STREAM", MANY)
    monkeypatch.setattr(worklist, "LONG", MANY)
    monkeypatch.setattr(long_work, "GRACE_SECONDS", 600.0)  # each cycle has other work: none waits longer
    monkeypatch.setattr(bronze_window, "_ROWS", 0)
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.0)
    yield gate_made
    gate_made.open.set()


class Folding:
    """A lake with a large table and a calm table; each window has a change of the calm table."""

    def __init__(self, spark: SparkSession, path: str, documents: Sequence[Document] = ()) -> None:
        self.spark, self.lake = spark, Lake(path=path)
        self.bronze, self.control = BronzeWriter(self.lake), ControlTables(self.lake)
        layers: list[Layer] = ["silver", "gold"] if documents else ["silver"]
        self.cycles: list[tuple[str, list[str]]] = []
        self.stages = Stages(
            spark,
            pipeline_of(path),
            documents,
            layers=layers,
            observe=lambda cut, runs: self.cycles.append((cut.layer, [run.name for run in runs])),
        )
        self.lsn = 10
        self.bronze.relations([LARGE, CALM])
        self.bronze.snapshot(LARGE, 10, [["0", "first"]])
        self.bronze.snapshot(CALM, 10, [["0", "first"]])
        assert set(self.cycle().tables) == {"large", "calm"}

    def cycle(self, *rows: dict[str, Any], leaves: bool = True) -> Cut:
        """Run a cycle over a window with these rows of the large table; return the newest cut."""
        self.lsn += 10
        self.bronze.add(self.lsn, [change(CALM, "insert", new=[str(self.lsn), "calm"]), *rows])
        self.bronze.commit(self.lsn + 5)
        self.stages.cycle(at_once=not leaves)
        cut = self.control.latest_cut("silver")
        assert cut is not None
        return cut

    def copy(self, note: str) -> None:
        """Write a new copy of the large table that replaces all rows; the rows lie in own files."""
        rows = [[str(number), note] for number in range(MANY)]
        self.bronze.add(self.lsn + 6, [change(LARGE, "snapshot", new=row) for row in rows[: MANY // 2]])
        self.bronze.commit(self.lsn + 5)
        self.bronze.snapshot(LARGE, self.lsn + 6, rows[MANY // 2 :])
        self.bronze.commit(self.lsn + 5)
        self.lsn += 10

    @property
    def long_work(self) -> long_work.LongWork:
        assert self.stages._silver is not None
        return self.stages._silver.long_work

    def is_locked(self, layer: str = "silver") -> bool:
        """Check whether a writer holds the lock of a layer's tables."""
        folder = self.lake.locks
        assert folder is not None
        with (folder / f"{layer}.writing").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def notes(self, table: str, cut: Cut) -> dict[int, str]:
        at = f"{self.lake.sql('silver', table)} VERSION AS OF {cut.tables[table]}"
        return {row[0]: row[1] for row in rows_of(self.spark, f"SELECT id, note FROM {at}")}


def update(number: int, note: str) -> dict[str, Any]:
    return change(LARGE, "update", new=[str(number), note])


def test_cycles_pass_while_a_large_table_is_copied(
    spark: SparkSession, lake_path: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    folding = Folding(spark, lake_path)
    folding.copy("copied")
    for passed in range(1, 3):
        cut = folding.cycle(update(0, f"while copied {passed}"))
        assert set(cut.tables) == {"calm"}, "a table that is being replaced is in no cut"
        assert max(folding.notes("calm", cut)) == folding.lsn
        assert folding.is_locked(), "silver's lease stays with the process that folds on"
    assert gate.begun == 1
    assert not folding.stages.reached(cut.commit_lsn)
    gate.open.set()
    wait_for(lambda: folding.long_work.has_ended, 60)
    # The cycle that takes the result needs nothing new of bronze.
    folding.stages.cycle(at_once=False)
    cut = folding.control.latest_cut("silver") or cut
    assert set(cut.tables) == {"large", "calm"}
    assert folding.notes("large", cut) == {0: "while copied 2"} | dict.fromkeys(range(1, MANY), "copied")
    assert not folding.is_locked()
    assert folding.stages.reached(cut.commit_lsn)
    runs = folding.control.runs("silver", "large")
    assert [run.mode for run in runs] == ["incremental", "snapshot", "snapshot"]
    assert runs[1].changes == MANY + 1, "statistics of bronze's files count the copy's rows"
    history = DeltaTable(folding.lake.uri("silver", "large")).history()
    copied = next(commit["operationMetrics"] for commit in history if commit["operation"] == "WRITE")
    assert int(copied["numFiles"]) == 1, "of two cores the copy leaves one to the others"

    # A table that always has much to fold is in every second cut at least.
    gate.open.clear()
    cut = folding.cycle(*(update(number, "twice") for number in range(MANY)))
    assert set(cut.tables) == {"calm"}
    gate.open.set()
    wait_for(lambda: folding.long_work.has_ended, 60)
    cut = folding.cycle(*(update(number, "thrice") for number in range(MANY)))
    assert set(folding.notes("large", cut).values()) == {"thrice"}

    # Who must catch up waits, also for what an earlier cycle left.
    gate.open.clear()
    monkeypatch.setattr(silver_cycle, "TASK_BYTES", 1)  # a file has as many rows as so many bytes of bronze
    folding.copy("again")
    assert set(folding.cycle().tables) == {"calm"}
    threading.Timer(1.0, gate.open.set).start()
    cut = folding.cycle(leaves=False)
    assert set(folding.notes("large", cut).values()) == {"again"}
    history = DeltaTable(folding.lake.uri("silver", "large")).history()
    copied = next(commit["operationMetrics"] for commit in history if commit["operation"] == "WRITE")
    assert int(copied["numFiles"]) >= MANY, "a file ends with so many rows as a task's bytes hold"
    assert folding.control.open_errors() == []
    folding.stages.end()


def test_failures_of_long_work_count_across_cycles(
    spark: SparkSession, lake_path: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    folding = Folding(spark, lake_path)
    gate.fails = [ValueError("the second"), ValueError("the first")]
    folding.copy("copied")
    assert set(folding.cycle().tables) == {"calm"}
    gate.let_pass(folding.long_work)
    assert set(folding.cycle().tables) == {"calm"}
    assert gate.begun == 2, "the first failure is tried again at once"
    assert folding.control.open_errors() == []
    gate.let_pass(folding.long_work)
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 3.0)
    folding.cycle()
    (error,) = folding.control.open_errors()
    assert (error.name, error.code) == ("public.large", "table-failed")
    assert "the second" in error.message
    # What is temporary for all ends the cycle that takes it, and the next one begins again.
    assert NAME not in folding.long_work.tables, "the table is paused"
    # A retry after the pause needs no new commit of bronze, and its cycle has no other work to wait for.
    monkeypatch.setattr(long_work, "GRACE_SECONDS", 0.0)
    wait_for(lambda: folding.stages.cycle(at_once=False) or NAME in folding.long_work.tables, 60)
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.0)
    gate.fails = [TransientError("away", code="lake-unreachable")]
    gate.open.set()
    wait_for(lambda: folding.long_work.has_ended, 60)
    with pytest.raises(TransientError, match="away"):
        folding.cycle()
    assert not folding.is_locked()
    cut = folding.cycle(leaves=False)
    assert set(folding.notes("large", cut).values()) == {"copied"}
    assert folding.control.open_errors() == []
    # A snapshot that came while the work was under way is the remedy of what ended the work.
    gate.open.clear()
    gate.fails = [TableError(NAME, "of another type", code="column-retyped", remedy="none")]
    folding.copy("wrong")
    assert set(folding.cycle().tables) == {"calm"}
    folding.copy("healed")
    folding.bronze.commit(folding.lsn + 1)
    gate.open.set()
    cut = folding.cycle(leaves=False)
    assert set(folding.notes("large", cut).values()) == {"healed"}
    assert folding.control.open_errors() == []

    # A stop waits for long work, and gives the lease back; the next process takes what was folded.
    gate.open.clear()
    folding.copy("stopped")
    folding.cycle()
    threading.Timer(0.5, gate.open.set).start()
    folding.stages.end()
    assert not folding.is_locked()
    after = Stages(spark, pipeline_of(lake_path), [], layers=("silver",))
    after.cycle()
    cut = folding.control.latest_cut("silver") or cut
    assert set(folding.notes("large", cut).values()) == {"stopped"}


def test_cycles_pass_while_gold_builds(
    spark: SparkSession, lake_path: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Gold.cycle

    def gated(gold: Gold, *, at_once: bool) -> Cut | None:
        assert gate.open.wait(120)
        return build(gold, at_once=at_once)

    gate.open.set()
    notes = document("document: notes\nroot: public.calm\nfields: [id, note]\n")
    folding = Folding(spark, lake_path, [notes])
    first = folding.control.latest_cut("gold")
    monkeypatch.setattr(Gold, "cycle", gated)
    gate.open.clear()
    for _ in range(2):
        cut = folding.cycle()
        assert max(folding.notes("calm", cut)) == folding.lsn
        assert folding.is_locked("gold")
        assert not folding.is_locked()
        assert folding.control.latest_cut("gold") == first
        assert not folding.stages.reached(cut.commit_lsn)
    gate.open.set()
    # The build that was under way may have begun with either cut; the loop goes on until gold has the newest.
    wait_for(lambda: folding.stages.cycle(at_once=False) or folding.stages.reached(cut.commit_lsn), 60)
    wait_for(lambda: not folding.stages.cycle(at_once=False) and folding.stages.reached(cut.commit_lsn), 60)
    built = folding.control.latest_cut("gold")
    assert built is not None
    assert built.commit_lsn == cut.commit_lsn
    at = f"{folding.lake.sql('gold', 'notes')} VERSION AS OF {built.tables['notes']}"
    assert {row[0] for row in rows_of(spark, f"SELECT id FROM {at}")} == set(folding.notes("calm", cut))
    assert not folding.is_locked("gold")
    assert folding.cycles[-1] == ("gold", ["notes"])
    assert [layer for layer, _ in folding.cycles].count("gold") <= 3

    # A failure is the loop's, as if gold had been waited for; the next cycle builds again.
    def fails(_gold: Gold, *, at_once: bool) -> Cut | None:
        assert not at_once
        assert gate.open.wait(120)
        raise TransientError("away", code="lake-unreachable")

    monkeypatch.setattr(Gold, "cycle", fails)
    gate.open.clear()
    cut = folding.cycle()
    gate.open.set()
    with pytest.raises(TransientError, match="away"):
        wait_for(lambda: folding.stages.cycle(at_once=False), 60)
    # Who must catch up waits for the build that is left, and then for the one from the newest cut.
    monkeypatch.setattr(Gold, "cycle", gated)
    gate.open.clear()
    folding.cycle()
    threading.Timer(0.5, gate.open.set).start()
    cut = folding.cycle(leaves=False)
    built = folding.control.latest_cut("gold")
    assert built is not None
    assert built.commit_lsn == cut.commit_lsn
    assert folding.stages.reached(cut.commit_lsn)
    folding.stages.end()


def test_long_work_reads_no_rows_of_the_window() -> None:
    assert long_work.LONG > bronze_window._ROWS
