"""Errors that give a caught-up run exit code 3: errors of the run's own layers only."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, cast

import pytest
from deltalake import Transaction

from deltasmelt.bronze.drift.membership import NOT_CARRIED
from deltasmelt.bronze.errors import ConfigurationError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.control import Cut, OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.marks import fingerprint_app
from deltasmelt.pipelines.commands.run import run_layers
from deltasmelt.pipelines.health.stalled import Stalled, standing_still, stopped_names
from deltasmelt.pipelines.runtime import stages
from deltasmelt.pipelines.runtime.maintenance import MAINTENANCE_FAILED
from deltasmelt.pipelines.runtime.stages import Stages, record_definitions
from deltasmelt.pipelines.runtime.supervisor import Supervisor
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.failures import Failure, tables_stopped
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.settings import SilverSettings
from tests.pipelines.runtime.test_run import Shop
from tests.pipelines.test_cli import smelt
from tests.silver.histories import INT, BronzeWriter, relation

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Layer

ERRORS = [
    OpenError("pipeline", "shop", "server-unreachable", "m"),
    OpenError("table", "public.keyless", "table-without-key", "m"),
    OpenError("table", "public.folded", "row-missing", "m"),
    OpenError("table", "public.new", "of-a-later-release", "m"),
    OpenError("document", "customer", "document-failed", "m"),
    OpenError("document", "removed", "document-failed", "m"),
]


def test_stage_counts_errors_of_layers_and_defined_documents() -> None:
    assert stopped_names(ERRORS, ["bronze"]) == ["public.keyless", "public.new"]
    assert stopped_names(ERRORS, ["silver"]) == ["public.folded", "public.new"]
    assert stopped_names(ERRORS, ["gold"], ["customer"]) == ["customer"]
    assert stopped_names(ERRORS, ["gold"]) == []
    assert stopped_names(ERRORS, ["bronze", "silver", "gold"], ["customer", "order"]) == [
        "customer", "public.folded", "public.keyless", "public.new",
    ]  # fmt: skip


class WrittenLake:
    """A bronze of the source's tables, and the newest cuts over them."""

    def __init__(self, path: str, *names: str) -> None:
        self.lake = Lake(path)
        self.control = ControlTables(self.lake)
        self.bronze = BronzeWriter(self.lake)
        self.shapes = {
            name: relation(name, [("id", INT)], ["id"], relation_id=at) for at, name in enumerate(names, 1)
        }
        self.bronze.relations(list(self.shapes.values()))
        for shape in self.shapes.values():
            self.bronze.snapshot(shape, 10, [["1"]])
        self.bronze.commit(20)

    def cut(self, *tables: str, documents: tuple[str, ...] = ()) -> None:
        self.control.record_cut(Cut("silver", Lsn(20), None, dict.fromkeys(tables, 1)))
        self.control.record_cut(Cut("gold", Lsn(20), None, dict.fromkeys(documents, 1)))

    def seen(self, name: str, number: int) -> None:
        uri = self.lake.uri("bronze", CHANGES)
        commit_marks(delta.open_existing(uri), [Transaction(fingerprint_app(TableName.parse(name)), number)])

    def standing(self, *layers: Layer, documents: tuple[str, ...] = ()) -> Stalled:
        return standing_still(self.lake, SilverSettings(), layers, documents)


def test_end_does_not_wait_for_starting_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts, released = threading.Event(), threading.Event()

    def start(*_: object, **__: object) -> None:
        starts.set()
        released.wait(300)
        raise InterruptedError

    monkeypatch.setattr("deltasmelt.pipelines.runtime.supervisor.take", start)
    # The process of the tests may have a session.
    monkeypatch.setattr("deltasmelt.pipelines.runtime.supervisor.existing_session", lambda: None)
    file = tmp_path / "pipeline.yml"
    file.write_text("pipeline: p\nsource: {dsn: '', slot: s, publication: s}\nlake: {path: lake}\n")
    try:
        with Supervisor(load_pipeline(file), [], command="silver", layers=["silver"]):
            assert starts.wait(60)
            begin = time.monotonic()
        assert time.monotonic() - begin < 2.5  # a running cycle is allowed 3 s
    finally:
        released.set()


def test_table_missing_in_newest_cut_is_named(lake_path: str) -> None:
    """The name appears with or without an open error of the table."""
    lake = WrittenLake(lake_path, "fine", "gapped", "locked", "dropped", "sales.locked")
    lake.seen("public.dropped", NOT_CARRIED)
    lake.bronze.relations([relation("later", [("id", INT)], ["id"], relation_id=8, from_lsn=21)])
    lake.bronze.relations([relation("never_seen", [("id", INT)], ["id"], relation_id=9)])
    lake.bronze.relations([relation("to_come", [("id", INT)], ["id"], relation_id=10)])
    lake.seen("public.to_come", 7)
    lake.cut("fine")
    for name in ("public.locked", "sales__locked", "public.keyless"):
        lake.control.open_error(OpenError("table", name, "table-locked", "its copy waits for a lock"))
    for name in ("public.fine", "silver.fine"):
        lake.control.open_error(OpenError("table", name, MAINTENANCE_FAILED, "m"))
    stalled = lake.standing("silver")
    assert stalled.stopped == ("public.keyless", "public.locked", "sales.locked")
    assert stalled.waiting == ("public.gapped", "public.to_come")
    assert {error.name for error in stalled.errors} == {"public.keyless", "public.locked", "sales__locked"}
    assert lake.standing("gold") == Stalled((), ())
    lake.cut("fine", "gapped", "locked", "to_come", "sales__locked")
    lake.control.close_errors("table", "public.keyless")
    assert not lake.standing("silver"), "a copy that is to be made again stops no table that the cut names"


def test_document_missing_in_newest_cut_is_named(lake_path: str) -> None:
    lake = WrittenLake(lake_path, "fine")
    lake.cut("fine", documents=("built", "removed"))
    lake.control.open_error(OpenError("document", "failed", "document-failed", "m"))
    stalled = lake.standing("silver", "gold", documents=("built", "failed", "ahead"))
    assert (stalled.stopped, stalled.waiting) == (("failed",), ("ahead",))
    assert [error.code for error in stalled.errors] == ["document-failed"]
    assert not lake.standing("silver")


def test_one_line_names_what_stands_still() -> None:
    ended = tables_stopped(["a", "b"], waiting=["c"])
    assert ended.exit_code == 3
    first, _, remedy = str(ended).partition("\n")
    assert first == "caught up except for: a, b (stopped by errors); c (waiting for data of bronze or silver)"
    assert remedy.startswith("remedy: ")


def test_end_shows_code_and_remedy_of_each_error() -> None:
    errors = [
        OpenError("table", f"public.t{number}", "table-without-key", "no key", "add a key")
        for number in range(7)
    ]
    few = str(tables_stopped(["public.t0"], errors=errors[:1])).splitlines()
    assert few[1:] == [
        "public.t0: no key [table-without-key]", "  remedy: add a key",
        "remedy: correct the cause above, then run the command again",
    ]  # fmt: skip
    many = str(tables_stopped([error.name for error in errors], errors=errors)).splitlines()
    assert len(many) == 12
    assert "smelt status" in many[-1]


@pytest.mark.spark
def test_silver_omitting_table_without_error_exits_3(spark: SparkSession, tmp_path: Path) -> None:
    assert spark is not None  # the command takes the session that is there
    lake = WrittenLake(str(tmp_path / "lake"), "fine", "gapped")
    lake.bronze.gap(lake.shapes["gapped"], 15)
    file = tmp_path / "pipeline.yml"
    file.write_text(
        "pipeline: p\nsource: {dsn: 'postgresql://127.0.0.1:1/x', slot: s, publication: p}\n"
        f"lake: {{path: '{lake.lake.path}'}}\ngold: {{documents: ['*d.yml']}}\n"
    )
    (tmp_path / "gapped.yml").write_text("document: gapped\nroot: public.gapped\nfields: [id]\n")
    (tmp_path / "good.yml").write_text("document: good\nroot: public.fine\nfields: [id]\n")
    order = "document: malformed\nroot: public.fine\nfields:\n  - x: {many: public.fine, on: {id: id}, "
    (tmp_path / "malformed.yml").write_text(order + "values: id, order_by: [id downwards]}\n")
    every: list[list[Layer]] = [["silver"], ["gold"], ["silver", "gold"]]
    for layers in every:
        with pytest.raises(Failure) as ended:
            run_layers(
                load_pipeline(file), Output(), layers=layers, until_caught_up=True, command="smelt test"
            )
        assert ended.value.exit_code == 3
        first = str(ended.value).partition("\n")[0]
        assert "gapped, malformed (stopped by errors)" in first or layers == ["silver"]
        assert "public.gapped (waiting for" in first or layers == ["gold"]
    silver, gold = lake.control.latest_cut("silver"), lake.control.latest_cut("gold")
    assert silver is not None
    assert gold is not None
    assert (set(silver.tables), set(gold.tables)) == ({"fine"}, {"good"})
    (open_error,) = (error for error in lake.control.open_errors() if error.name == "malformed")
    assert open_error.code == "yaml-content"
    assert "malformed.yml:4: fields" in open_error.message
    (tmp_path / "malformed.yml").write_text("document: malformed\nroot: public.fine\nfields: [id]\n")
    (tmp_path / "gapped.yml").unlink()
    run_layers(load_pipeline(file), Output(), layers=["gold"], until_caught_up=True, command="smelt test")
    assert [error for error in lake.control.open_errors() if error.scope == "document"] == []


@pytest.mark.postgres
def test_removed_document_does_not_fail_caught_up_bronze(tmp_path: Path, database: str) -> None:
    shop = Shop(tmp_path, database)
    control = ControlTables(shop.pipeline.lake_address())
    for error in ERRORS[-2:]:
        control.open_error(error)
    process = smelt("bronze", shop.file, "--until-caught-up", folder=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "caught up" in process.stderr
    shop.execute("CREATE TABLE keyless (a int)")
    process = smelt("bronze", shop.file, "--until-caught-up", folder=tmp_path)
    assert process.returncode == 3, process.stderr
    assert "keyless" in process.stderr
    assert "removed" not in process.stderr


def test_unreadable_definition_is_error_until_readable_or_removed(tmp_path: Path) -> None:
    control = ControlTables(Lake(path=str(tmp_path)))
    for error in ERRORS:
        control.open_error(error)
    wrong = ConfigurationError("is not an ordering", code="document-invalid", where="d.yml:4")
    record_definitions(control, ["customer"], {"d.yml": wrong})
    documents = {
        open_error.name: open_error for open_error in control.open_errors() if open_error.scope == "document"
    }
    assert documents.keys() == {"customer", "d.yml"}
    assert documents["d.yml"].message == "d.yml:4: is not an ordering"
    assert documents["d.yml"].remedy
    record_definitions(control, ["customer", "d"])
    assert [open_error.name for open_error in control.open_errors() if open_error.scope == "document"] == [
        "customer"
    ]
    assert len(control.open_errors()) == len(ERRORS) - 1


def test_document_errors_close_after_last_definition_vanishes(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yml"
    file.write_text("pipeline: p\nsource: {dsn: 'host=h', slot: s, publication: p}\nlake: {path: lake}\n")
    pipeline = load_pipeline(file)
    control = ControlTables(pipeline.lake_address())
    for error in ERRORS:
        control.open_error(error)
    stages = Stages(cast("SparkSession", None), pipeline, [], layers=("gold",))
    assert not stages.cycle(), "nothing to build: no Spark either"
    assert [error for error in control.open_errors() if error.scope == "document"] == []
    assert len(control.open_errors()) == len(ERRORS) - 2


class Answering:
    """A session that answers, or refuses connections."""

    def __init__(self, *, living: bool = True) -> None:
        self.living = living

    def sql(self, _: str) -> Answering:
        if not self.living:
            raise ConnectionRefusedError
        return self

    def collect(self) -> list[tuple[int]]:
        return [(1,)]


RESET = OSError("Generic S3 error: connection reset by peer")


@pytest.mark.parametrize(
    ("fails", "living", "patience", "ends"),
    [
        (RESET, True, 60.0, None),
        (RESET, True, 0.0, TransientError),
        (RESET, False, 60.0, OSError),
        (ValueError("no rule"), True, 60.0, ValueError),
        (TransientError("a lock", code="x"), True, 60.0, None),
        (TransientError("a lock", code="x"), True, 0.0, TransientError),
    ],
    ids=repr,
)
def test_unresponsive_lake_is_awaited_and_run_continues(  # noqa: PLR0917
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: Exception,
    living: bool,  # noqa: FBT001
    patience: float,
    ends: type[Exception] | None,
) -> None:
    file = tmp_path / "pipeline.yml"
    file.write_text("pipeline: p\nsource: {dsn: 'host=h', slot: s, publication: p}\nlake: {path: lake}\n")
    spark = cast("SparkSession", Answering(living=living))
    run = Stages(spark, load_pipeline(file), [], layers=("gold",))
    monkeypatch.setattr(stages, "_FIRST_PAUSE", 0.001)
    attempts: list[int] = []

    def cycle(*, at_once: bool) -> bool:
        attempts.append(1)
        if len(attempts) < 4:
            raise fails
        return False

    monkeypatch.setattr(run, "cycle", cycle)
    if ends is None:
        run.carry(lambda: Lsn(1), threading.Event(), patience=patience)
        assert len(attempts) == 4
        return
    with pytest.raises(ends):
        run.carry(lambda: Lsn(1), threading.Event(), patience=patience)
    assert len(attempts) == 1
