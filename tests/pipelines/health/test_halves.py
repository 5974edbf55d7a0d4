"""Server and lake, each read separately: an unreachable half hides nothing of the reachable half."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import jsonschema
import pyarrow as pa
import pytest
from deltalake import write_deltalake

import deltasmelt
from deltasmelt.bronze.errors import SmeltError, TransientError
from deltasmelt.bronze.lake import parquet
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.health.half import Half, words
from deltasmelt.pipelines.health.lake_half import Backlog
from deltasmelt.pipelines.health.status import StatusReader, read_status
from deltasmelt.pipelines.health.status_json import plain_status, status_schema
from deltasmelt.pipelines.monitor.page import render
from deltasmelt.pipelines.monitor.samples import Samples
from deltasmelt.pipelines.monitor.watch import watched, why_not_ready
from deltasmelt.pipelines.runtime.stages import Stages
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.failures import STOPPED
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.spark.lazy_session import LazySession
from tests.bronze.replaying import execute, read_all, source_of
from tests.bronze.store.test_sink import at, open_sink
from tests.object_store import Faults
from tests.patience import wait_for
from tests.pipelines.in_process import smelt_here
from tests.pipelines.monitor.rules import exported, require_firing
from tests.pipelines.monitor.test_alerts import receiver
from tests.pipelines.runtime.test_requests import no_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltasmelt.pipelines.health.status import Status
    from deltasmelt.pipelines.settings import Pipeline
    from tests.object_store import ObjectStore


def metrics_of(status: Status) -> list[str]:
    return [line.replace('{pipeline="shop"}', "") for line in exported(status).splitlines()]


def require_shown(status: Status, *texts: str) -> None:
    """Require texts on the page."""
    samples = Samples()
    samples.add(status)
    view = samples.view({"bronze": True})
    page = render(view, "shop", why_not_ready(view, ("bronze",), 300.0), report=False)
    assert [text for text in texts if text not in page] == []


def require_seen_beside_a_silent_lake(pipeline: Pipeline, store: ObjectStore, both: Status) -> None:
    store.set_faults(Faults(latency=3.0))
    silent = StatusReader(pipeline, patience=1.0).read()
    assert silent.slot == both.slot
    assert "the lake has not answered for 1 s" in str(silent.lake_error)
    require_firing([exported(silent)], {"DeltasmeltLakeDown", "DeltasmeltNotReady", "DeltasmeltSlotUnread"})


@pytest.mark.postgres
@pytest.mark.process
def test_either_half_away_hides_nothing_of_the_other(
    database: str, store: ObjectStore, place: str, tmp_path: Path
) -> None:
    source, file = source_of(database), tmp_path / "pipeline.yml"
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    read_all(source, place)

    def pipeline_file(dsn: str) -> Path:
        file.write_text(
            json.dumps(
                {
                    "pipeline": "shop",
                    "source": {"dsn": dsn, "slot": source.slot, "publication": "smelt"},
                    "lake": {"path": place, "options": store.options()},
                }
            )
        )
        return file

    pipeline = load_pipeline(pipeline_file(database))
    error = OpenError("table", "public.t", "table-without-key", "no key")
    ControlTables(pipeline.lake_address()).open_error(error)
    status = read_status(pipeline)
    assert (status.source_error, status.lake_error, status.lake_read) == (None, None, True)
    assert status.slot is not None

    reader = StatusReader(pipeline)
    for faults in (Faults(denied="GET|HEAD"), Faults(gone=True)):
        store.set_faults(faults)
        away = reader.read()
        jsonschema.validate(json.loads(json.dumps(plain_status(away))), status_schema())
        with deltasmelt.OpenLake(pipeline) as opened, pytest.raises(SmeltError):
            opened.status()
        assert away.lake_error is not None
        assert (away.lake_read, away.source_error) == (False, None)
        assert (away.slot, away.wal is None) == (status.slot, False)
        assert [(rung.name, rung.lsn is None) for rung in away.ladder] == [
            ("head", False), ("slot confirmed", False), ("bronze", True), ("silver", True),
        ]  # fmt: skip
        metrics = metrics_of(away)
        assert {"deltasmelt_lake_up 0.0", "deltasmelt_source_up 1.0", "deltasmelt_slot_active 0.0"} <= {
            *metrics
        }
        assert not [line for line in metrics if "open_errors{" in line or "tables{" in line], "not known"
        require_shown(away, "<li>the lake cannot be read: ", "wal_status reserved, no reader")
    require_firing([exported(away)], {"DeltasmeltLakeDown", "DeltasmeltNotReady", "DeltasmeltSlotUnread"})
    process = smelt_here("status", pipeline_file(database), folder=tmp_path)
    assert process.returncode == STOPPED
    assert "wal_status reserved, no reader" in process.stdout
    assert "[lake-" in process.stderr
    assert "Traceback" not in process.stdout + process.stderr
    neither = smelt_here("status", pipeline_file("host=127.0.0.1 port=1"), folder=tmp_path)
    assert neither.returncode == STOPPED
    assert "cannot be reached" in neither.stdout
    assert "[lake-" in neither.stderr

    require_seen_beside_a_silent_lake(pipeline, store, status)
    store.set_faults(Faults(gone=True))

    dead = StatusReader(load_pipeline(pipeline_file("host=127.0.0.1 port=1"))).read()
    assert set(dead.unseen) == {"source", "lake"}
    require_firing([exported(dead)], {"DeltasmeltLakeDown", "DeltasmeltSourceDown", "DeltasmeltNotReady"})

    store.set_faults()
    back = reader.read()
    assert (back.lake_error, back.errors) == (None, status.errors)
    down = read_status(load_pipeline(pipeline_file("host=127.0.0.1 port=1")))
    assert down.source_error is not None
    assert (down.slot, down.tables, down.errors) == (None, status.tables, status.errors)
    require_shown(down, "<li>the source does not answer: ", "<strong>table public.t</strong>")
    metrics = metrics_of(down)
    assert {"deltasmelt_lake_up 1.0", "deltasmelt_source_up 0.0"} <= {*metrics}
    require_firing(
        [exported(down)],
        {"DeltasmeltSourceDown", "DeltasmeltNotReady", "DeltasmeltOpenError", "DeltasmeltStopped"},
    )


def test_vanished_local_lake_fails_until_restored(tmp_path: Path) -> None:
    lake, aside = tmp_path / "lake", tmp_path / "aside"
    with receiver(200) as (hook, accepted):
        file = tmp_path / "p.yml"
        file.write_text(
            "pipeline: shop\nsource: {host: 127.0.0.1, port: 1, user: u, slot: s, publication: p}\n"
            f"lake: {{path: lake}}\nalerts: {{webhook: '{hook}', kinds: [error]}}\n"
        )
        pipeline = load_pipeline(file)
        sink = open_sink(str(lake))
        sink.commit(at(10))
        error = OpenError("table", "public.t", "table-failed", "no answer of postgresql://me:hidden@db")
        ControlTables(pipeline.lake_address()).open_error(error)
        reader = StatusReader(pipeline)
        stages = Stages(LazySession(no_spark), pipeline, [])
        stages.cycle()
        before = reader.read()
        assert (before.lake_read, before.ladder[0].lsn) == (True, Lsn(10))
        assert [found.message for found in before.errors] == ["no answer of postgresql://me:***@db"]
        with watched(pipeline, ("bronze",), None, Output()) as command:
            command.runs(lambda: {"bronze": True})
            wait_for(lambda: len(accepted) == 1, 20)
            lake.rename(aside)
        assert [alert["state"] for alert in accepted] == ["firing"], "a lake that is gone resolves nothing"
    for _ in range(2):
        away = reader.read()
        assert (away.lake_read, away.errors) == (False, ())
        assert "no longer exists" in str(away.lake_error)
        with pytest.raises(TransientError, match="no longer exists"):
            stages.cycle()
    aside.rename(lake)
    assert reader.read() == before
    assert not stages.cycle()
    lake.rename(aside)
    assert not reader.read().lake_read
    open_sink(str(lake)).commit(at(20))
    second_lake = reader.read()
    assert (second_lake.lake_read, second_lake.errors, second_lake.ladder[0].lsn) == (True, (), Lsn(20)), (
        "another lake"
    )


def test_silent_half_is_awaited_for_limited_time() -> None:
    silent = [True]

    def read() -> int:
        while silent[0]:
            time.sleep(0.01)
        return 7

    half = Half("the lake", read, code="lake-unreachable", patience=0.2, again=0.1)
    for _ in range(3):
        start = time.monotonic()
        half.begin()
        assert half.answer() == (None, half.failure)
        assert "the lake has not answered for " in str(half.failure)
        assert time.monotonic() - start < 5
    silent[0] = False
    half.begin()
    assert half.answer() == (7, None)


class Panic(BaseException):
    """An error like `deltalake`'s panic: no `Exception`."""


@pytest.mark.parametrize(
    ("error", "message"),
    [(KeyError("marks"), "KeyError: 'marks'"), (Panic("index 3"), "RuntimeError: Panic: index 3")],
)
def test_what_a_half_meets_is_its_own_error(error: BaseException, message: str) -> None:
    def read() -> int:
        raise error

    half = Half("the lake", read, code="lake-unreachable")
    half.begin()
    value, failure = half.answer()
    assert value is None
    assert failure is not None
    assert words(failure) == message
    with pytest.raises(KeyboardInterrupt):
        Half("the lake", interrupted, code="lake-unreachable", threaded=False).answer()


def interrupted() -> int:
    raise KeyboardInterrupt


def test_missing_transactions_are_counted_without_rereading_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_first, ends = datetime(2026, 1, 1, tzinfo=UTC), {}
    table = pa.schema(
        [("commit_lsn", pa.int64()), ("commit_ts", pa.timestamp("us", "UTC")), ("end_of_tx", pa.bool_())]
    )

    def append(first: int, count: int) -> None:
        lsns = [lsn for lsn in range(first, first + count) for _ in range(2)]
        ends.update({lsn: at_first + timedelta(seconds=lsn) for lsn in lsns})
        rows = {
            "commit_lsn": lsns,
            "commit_ts": [ends[lsn] for lsn in lsns],
            "end_of_tx": [False, True] * count,
        }
        write_deltalake(str(tmp_path), pa.table(rows, table), mode="append")

    for number in range(4):
        append(number * 10 + 1, 10)
    read: list[str] = []
    files = parquet.file_batches

    def noted(uri: str, path: str, *more: Any) -> Iterator[pa.RecordBatch]:
        if len(read) == at_most[0]:
            raise OSError("no answer")
        read.append(path)
        return files(uri, path, *more)

    at_most = [2]

    monkeypatch.setattr(parquet, "file_batches", noted)
    backlog = Backlog()

    def counted(*positions: int) -> dict[int, tuple[int, datetime | None]]:
        read.clear()
        counts = backlog.after(open_existing(str(tmp_path)), [Lsn(position) for position in positions])
        return {int(position): count for position, count in counts.items()}

    def expected(*positions: int) -> dict[int, tuple[int, datetime | None]]:
        later = {position: [ends[lsn] for lsn in ends if lsn > position] for position in positions}
        return {position: (len(times), min(times, default=None)) for position, times in later.items()}

    with pytest.raises(OSError, match="no answer"):
        counted(0)
    at_most[0] = -1
    assert counted(0) == expected(0)
    assert len(read) == 2, "what a look read before it failed is known"
    for positions, files_read in [
        ((5, 25), 2),
        ((5, 25), 2),
        ((10, 30), 0),
        ((30,), 0),
        ((40, 40), 0),
        ((0,), 4),
    ]:
        assert counted(*positions) == expected(*positions)
        assert len(read) == files_read, positions
    append(41, 3)
    assert counted(0, 40) == expected(0, 40)
    assert len(read) == 1
