"""The control tables: several processes write cuts, errors and runs, and read them cheaply."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
from deltalake import DeltaTable

from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import compaction, control_table, delta
from deltasmelt.bronze.lake.compaction import conform
from deltasmelt.bronze.lake.control import CUTS_SCHEMA, Cut, Named, OpenError, Run
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.thinning import Move
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.position import read_position
from deltasmelt.bronze.store.relations import read_relations
from tests.bronze.replaying import read_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from deltasmelt.bronze.lake.location import Layer

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
MANY_FILES = 15
"""Number of files from which a test compacts a table; the product's number is 13 times as large."""


def cut(lsn: int, **tables: int) -> Cut:
    return Cut("silver", Lsn(lsn), NOON + timedelta(seconds=lsn), tables)


def test_an_empty_lake_has_nothing_recorded(lake_path: str) -> None:
    lake = Lake(lake_path)
    control = ControlTables(lake)
    assert control.latest_cut("silver") is None
    assert control.cuts("gold") == []
    assert control.open_errors() == []
    assert control.runs() == []
    assert read_position(lake) is None
    assert read_snapshot(lake, TableName("public", "t")) is None
    assert read_relations(lake) == []


def test_the_latest_cut_has_its_layers_highest_lsn(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    control.record_cut(cut(20, a=3, b=1))
    control.record_cut(cut(10, a=2))
    control.record_cut(Cut("gold", Lsn(99), None, {"customer": 7}))
    latest = control.latest_cut("silver")
    assert latest is not None
    assert (latest.commit_lsn, latest.tables) == (Lsn(20), {"a": 3, "b": 1})
    assert isinstance(latest.commit_lsn, Lsn)
    assert latest.commit_ts == NOON + timedelta(seconds=20)
    assert [recorded_cut.commit_lsn for recorded_cut in control.cuts("silver")] == [10, 20]


def test_a_cut_is_found_by_lsn_or_time(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    for lsn in (10, 20, 30):
        control.record_cut(cut(lsn, a=lsn))
    cuts = [control.latest_cut("silver", at=Lsn(lsn)) for lsn in (9, 10, 29, 300)]
    assert [newest and newest.commit_lsn for newest in cuts] == [None, 10, 20, 30]
    by_time = control.latest_cut("silver", at=NOON + timedelta(seconds=29))
    assert by_time is not None
    assert by_time.commit_lsn == 20


def test_a_second_record_of_a_cut_replaces_it(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    control.record_cut(cut(10, a=1, gone=1))
    control.record_cut(cut(10, a=2))
    assert [recorded_cut.tables for recorded_cut in control.cuts("silver")] == [{"a": 2}]
    latest = control.latest_cut("silver")
    assert latest is not None
    assert latest.tables == {"a": 2}


def test_a_cut_without_tables_still_says_its_position(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    control.record_cut(cut(10))
    latest = control.latest_cut("silver")
    assert latest is not None
    assert (latest.commit_lsn, latest.tables) == (10, {})


def test_an_error_is_recorded_once_while_open(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    error = OpenError("table", "public.it's", "table-without-key", "no key", "add one", Lsn(7))
    control.open_error(error)
    control.open_error(error)
    control.open_error(OpenError("pipeline", "shop", "server-unreachable", "connection refused"))
    assert [(open_error.name, open_error.commit_lsn) for open_error in control.open_errors()] == [
        ("public.it's", 7),
        ("shop", None),
    ]
    control.close_errors("table", "public.it's")
    assert [open_error.name for open_error in control.open_errors()] == ["shop"]
    control.open_error(error)
    assert {open_error.name for open_error in control.open_errors()} == {"shop", "public.it's"}
    closed = [
        row["closed_at"] for row in DeltaTable(f"{lake_path}/control/errors").to_pyarrow_table().to_pylist()
    ]
    assert sorted(at is None for at in closed) == [False, True, True]


def test_an_error_in_unchanged_words_is_not_rewritten(lake_path: str) -> None:
    """True even if the recorded text differs from the new text because the new text repeats a key's bytes."""
    control = ControlTables(Lake(lake_path))
    message = f"no key in {list(range(80, 95))}"
    errors = [OpenError("table", f"public.{name}", "code", message) for name in "ab"]
    control.restate_errors([*errors, replace(errors[0], message="another problem of the table")])
    version = DeltaTable(f"{lake_path}/control/errors").version()
    control.restate_errors([*errors, replace(errors[0], message="another problem of the table")])
    control.restate_error(errors[1])
    assert DeltaTable(f"{lake_path}/control/errors").version() == version
    control.restate_errors([replace(error, message="other words") for error in errors])
    assert DeltaTable(f"{lake_path}/control/errors").version() == version + 2, "closed, and recorded"
    assert [error.message for error in control.open_errors()] == ["other words"] * 2


def test_closing_one_code_leaves_other_errors_open(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    for code in ("one", "two"):
        control.open_error(OpenError("table", "public.t", code, "message"))
    control.close_errors("table", "public.t", "one")
    control.close_errors("table", "public.t", "never-opened")
    assert [error.code for error in control.open_errors()] == ["two"]


def test_runs_are_returned_newest_first(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    older = Run("silver", "orders", "incremental", Lsn(1), Lsn(2), changes=3, started_at=NOON)
    newer = Run(
        "gold", "customer", "full", None, Lsn(2), reason="first run", details={"fan_out": 2.5},
        started_at=NOON + timedelta(seconds=1),
    )  # fmt: skip
    control.record_runs([older])
    control.record_runs([newer])
    control.record_runs([])
    assert control.runs() == [newer, older]
    assert control.runs("silver") == [older]
    assert control.runs(name="customer") == [newer]
    assert control.runs(limit=1) == [newer]


def test_a_reader_sees_another_processs_cuts(lake_path: str) -> None:
    reading, writing = ControlTables(Lake(lake_path)), ControlTables(Lake(lake_path))
    assert reading.latest_cut("silver") is None
    writing.record_cut(cut(10, a=1))
    newest = reading.latest_cut("silver")
    assert newest is not None
    assert newest.commit_lsn == 10
    writing.record_cut(cut(11, a=2))
    assert [recorded_cut.commit_lsn for recorded_cut in reading.cuts("silver")] == [10, 11]


def test_many_appends_are_compacted_without_losing_a_row(
    lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_table, "COMPACT_ABOVE", MANY_FILES)
    control, count = ControlTables(Lake(lake_path)), MANY_FILES + 5
    for number in range(count):
        control.record_cut(cut(number, a=number))
    assert [recorded_cut.tables["a"] for recorded_cut in control.cuts("silver")] == list(range(count))
    assert len(DeltaTable(f"{lake_path}/control/cuts").file_uris()) < MANY_FILES // 2


def _write(path: str, first: int) -> None:
    control = ControlTables(Lake(path))
    for number in range(first, first + 5):
        control.record_cut(cut(number, a=number))
    control.open_error(OpenError("table", f"t{first}", "code", "message"))
    control.close_errors("table", f"t{first}")


def test_simultaneous_starts_on_an_empty_lake_lose_nothing(lake_path: str) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write, args=(lake_path, first)) for first in (0, 100)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    control = ControlTables(Lake(lake_path))
    assert [recorded_cut.commit_lsn for recorded_cut in control.cuts("silver")] == [
        first + number for first in (0, 100) for number in range(5)
    ]
    assert control.open_errors() == []


def test_a_cut_expires_by_its_successors_time(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    assert control.expire_cuts(NOON, gold=True) == 0, "there is no cut"
    for lsn in (10, 20, 30):
        control.record_cut(replace(cut(lsn, a=lsn, b=1), recorded_at=NOON + timedelta(seconds=lsn)))
    assert control.expire_cuts(NOON + timedelta(seconds=20), gold=False) == 0, "the first stood until then"
    assert control.expire_cuts(NOON + timedelta(seconds=20, microseconds=1), gold=False) == 1
    assert [recorded_cut.tables for recorded_cut in control.cuts("silver")] == [
        {"a": 20, "b": 1},
        {"a": 30, "b": 1},
    ]
    assert control.expire_cuts(NOON + timedelta(days=9), gold=False) == 1
    assert [recorded_cut.commit_lsn for recorded_cut in control.cuts("silver")] == [30], "the newest stays"


def test_gold_keeps_its_cut_of_silver(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    for lsn in (10, 20, 30):
        control.record_cut(replace(cut(lsn, a=lsn), recorded_at=NOON + timedelta(seconds=lsn)))
    control.record_cut(Cut("gold", Lsn(10), None, {"d": 1}, NOON))
    later = NOON + timedelta(days=1)
    assert control.expire_cuts(later, gold=True) == 1
    assert [recorded_cut.commit_lsn for recorded_cut in control.cuts("silver")] == [10, 30]
    assert control.oldest_version("silver", "a") == 10
    assert control.expire_cuts(later, gold=False) == 1
    assert [recorded_cut.commit_lsn for recorded_cut in control.cuts("silver")] == [30]
    assert control.latest_cut("gold") is not None


def test_the_last_record_of_an_lsn_counts(
    lake_path: str,
) -> None:
    """Silver is derived again after its clock went back, or on a second machine."""
    ControlTables(Lake(lake_path)).record_cut(replace(cut(10, a=1), recorded_at=NOON))
    first_control, second_control = ControlTables(Lake(lake_path)), ControlTables(Lake(lake_path))
    assert first_control.latest_cut("silver") == second_control.latest_cut("silver")
    ago = NOON - timedelta(hours=2)
    first_control.record_cut(Cut("gold", Lsn(10), None, {"d": 1}, NOON + timedelta(hours=9), built_from=NOON))
    second_control.record_cut(Cut("silver", Lsn(10), None, {"a": 2}, ago, ids={"a": -7}))
    second_control.record_cut(Cut("silver", Lsn(10), None, {"a": 3}, ago))
    for control in (first_control, second_control, ControlTables(Lake(lake_path))):
        newest, gold = control.latest_cut("silver"), control.latest_cut("gold")
        assert newest is not None
        assert gold is not None
        assert newest.tables == {"a": 3}
        assert [recorded_cut.tables for recorded_cut in control.cuts("silver")] == [{"a": 3}]
        read = control.latest_cut("silver", at=Lsn(10), known_by=gold.seen)
        assert read is not None
        assert read.tables == {"a": 1}, "what gold says that it was built from"
        assert newest.recorded_at is not None
        second = control.latest_cut("silver", known_by=newest.recorded_at - timedelta(microseconds=1))
        assert second is not None
        assert (second.tables, second.ids) == ({"a": 2}, {"a": -7})
    second_control.record_cut(replace(cut(20, a=4), recorded_at=ago - timedelta(days=9)))
    second_control.expire_cuts(NOON + timedelta(days=1), gold=False)
    assert second_control.cuts("silver")[-1].tables == {"a": 4}, "the newest stays, however old it looks"


def test_the_last_cut_naming_a_table_is_found(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    assert control.last_named("silver", "a") is None
    for lsn, tables in (
        (10, {"a": 1, "b": 1}),
        (30, {"a": 2, "b": 2}),
        (20, {"a": 1, "b": 2}),
        (40, {"b": 3}),
    ):
        control.record_cut(cut(lsn, **tables))
    control.record_cut(Cut("gold", Lsn(99), None, {"a": 7}, marks={"a": Lsn(98)}))
    for control_tables in (control, ControlTables(Lake(lake_path))):
        assert control_tables.last_named("silver", "a") == Named(Lsn(30), 2, None)
        assert control_tables.last_named("silver", "b") == Named(Lsn(40), 3, None)
        assert control_tables.last_named("silver", "b", at=Lsn(39)) == Named(Lsn(30), 2, None)
        assert control_tables.last_named("silver", "c") is None
        assert control_tables.last_named("gold", "a") == Named(Lsn(99), 7, Lsn(98))
    control.expire_cuts(NOON + timedelta(days=900), gold=False)
    assert control.last_named("silver", "a") is None, "what it held is in no cut any more"


def test_no_cut_names_lost_versions_of_a_table(lake_path: str) -> None:
    """A rolled back table repeats its versions with different rows; marks distinguish the versions.

    Each cut keeps the remaining tables.
    """
    control = ControlTables(Lake(lake_path))
    for lsn, version in ((10, 1), (20, 2), (30, 3)):
        marks = {"a": Lsn(lsn - 5), "b": Lsn(lsn)}
        control.record_cut(Cut("silver", Lsn(lsn), None, {"a": version, "b": version}, marks=marks))
    control.disown("silver", "a", 7, Lsn(15))  # version 1 put back, and six versions by others
    for control_tables in (control, ControlTables(Lake(lake_path))):
        assert [(cut.tables, cut.marks) for cut in control_tables.cuts("silver")] == [
            ({"a": 1, "b": 1}, {"a": 5, "b": 10}),
            ({"a": 2, "b": 2}, {"a": 15, "b": 20}),
            ({"b": 3}, {"b": 30}),
        ]
    control.disown("silver", "a", 1, Lsn(15))
    control.disown("silver", "b", 0, None)
    assert [cut.tables for cut in control.cuts("silver")] == [{"a": 1}, {}, {}]


def test_rewritten_table_leaves_only_its_cuts(lake_path: str) -> None:
    """Cuts with the same rows name the successor; older cuts lose this table alone."""
    control = ControlTables(Lake(lake_path))
    for lsn, version in ((10, 1), (20, 2), (30, 3), (40, 3)):
        control.record_cut(Cut("silver", Lsn(lsn), None, {"a": version, "b": version}, ids={"b": 7}))
        control.record_cut(Cut("gold", Lsn(lsn), None, {"a": version}))
    moves: dict[tuple[Layer, str], Move] = {("silver", "a"): Move(3, 9, 5), ("silver", "gone"): Move(1, 4)}
    assert control.readdress(moves, dry_run=True) == (2, 2)
    assert control.cuts("silver")[0].tables == {"a": 1, "b": 1}
    assert control.readdress(moves) == (2, 2)
    for control_tables in (control, ControlTables(Lake(lake_path))):
        assert [(cut.commit_lsn, cut.tables) for cut in control_tables.cuts("silver")] == [
            (10, {"b": 1}), (20, {"b": 2}), (30, {"a": 9, "b": 3}), (40, {"a": 9, "b": 3}),
        ]  # fmt: skip
        assert control_tables.cuts("silver")[-1].ids == {"a": 5, "b": 7}
        assert [cut.tables for cut in control_tables.cuts("gold")] == [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 3}]
    again: dict[tuple[Layer, str], Move] = {("silver", "a"): Move(9, 9)}
    assert control.readdress(again) == (0, 0)


def test_cuts_of_an_earlier_release_are_read(lake_path: str) -> None:
    later = {"mark_lsn", "built_from", "table_id"}
    former = pa.schema([field for field in CUTS_SCHEMA if field.name not in later])
    row = {"commit_lsn": 10, "layer": "silver", "table_name": "a", "delta_version": 1, "recorded_at": NOON}
    table = delta.open_or_create(f"{lake_path}/control/cuts", former, description="")
    table.append(pa.Table.from_pylist([row], schema=former))
    for lsn in (20, 30):
        control = ControlTables(Lake(lake_path))
        control.record_cut(Cut("silver", Lsn(lsn), None, {"a": 2}, marks={"a": Lsn(lsn)}))
        assert control.cuts("silver")[0].marks == {}
        assert control.last_named("silver", "a") == Named(Lsn(lsn), 2, Lsn(lsn))
    assert pa.schema(delta.open_existing(f"{lake_path}/control/cuts").schema()).names == CUTS_SCHEMA.names


def test_missing_columns_are_added_without_reading_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Converting hundreds of thousands of rows to Python objects costs each process seconds."""
    former = pa.table({"layer": ["silver"], "commit_lsn": pa.array([10], pa.int64())})
    monkeypatch.setattr(compaction, "pa", SimpleNamespace(nulls=pa.nulls, ArrowException=pa.ArrowException))
    conformed = conform(former, CUTS_SCHEMA)
    assert conformed.schema == CUTS_SCHEMA
    assert (conformed["commit_lsn"][0].as_py(), conformed["mark_lsn"][0].as_py()) == (10, None)


def test_missing_columns_and_inner_fields_are_null() -> None:
    former = pa.table({"b": [{"x": 1}]})
    schema = pa.schema({"a": pa.string(), "b": pa.struct({"x": pa.int64(), "y": pa.int64()})})
    assert conform(former, schema).to_pylist() == [{"a": None, "b": {"x": 1, "y": None}}]


def test_foreign_writes_are_flushed_before_ours(lake_path: str) -> None:
    """A kill may have ended the first process between commit and flush; reading alone flushes nothing."""
    ControlTables(Lake(lake_path)).open_error(OpenError("table", "a", "some-code", "said", None))
    flushed: list[int] = []

    def watch(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if door is Effect.FLUSH and where.endswith(".json"):
            flushed.append(int(where.rpartition("/")[2].removesuffix(".json")))
        return effect()

    control = ControlTables(Lake(lake_path))
    with guarded(watch):
        assert len(control.open_errors()) == 1
        assert flushed == []
        control.open_error(OpenError("table", "b", "some-code", "said", None))
        assert flushed == [0, 1, 2], "ours is the last"
        control.open_error(OpenError("table", "c", "some-code", "said", None))
    assert flushed[3:] == [3], "once is enough"


def test_the_oldest_version_counts_replaced_records(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    control.record_cut(replace(cut(10, a=4, b=7), recorded_at=NOON))
    control.record_cut(replace(cut(10, a=6, b=7), recorded_at=NOON + timedelta(seconds=1)))
    assert [control.oldest_version("silver", name) for name in ("a", "b", "c")] == [4, 7, None]
    assert control.oldest_version("gold", "a") is None
    before = control.latest_cut("silver", known_by=NOON)
    assert before is not None
    assert before.tables == {"a": 4, "b": 7}
    assert control.latest_cut("silver", known_by=NOON - timedelta(seconds=1)) is None


def _record(lake: str, first: int, number: int) -> None:
    control = ControlTables(Lake(lake))
    for lsn in range(first, first + number):
        control.record_cut(cut(lsn, a=lsn, b=lsn))


def _record_and_join(lake: str, first: int, number: int) -> None:
    with patch.object(control_table, "COMPACT_ABOVE", MANY_FILES):
        _record(lake, first, number)


def test_cuts_expire_beside_a_writing_process(lake_path: str) -> None:
    """Cuts expire just before the writer compacts their files: neither process removes or restores a row."""
    lake, count = Lake(lake_path), 2 * MANY_FILES + 20
    control, removed = ControlTables(lake), 0
    control.record_cut(cut(1, a=1, b=1))
    writer = multiprocessing.get_context("spawn").Process(
        target=_record_and_join, args=(lake_path, 2, count - 1)
    )
    writer.start()
    while writer.is_alive():
        if len(DeltaTable(lake.uri("control", "cuts")).file_uris()) > MANY_FILES - 5:
            removed += control.expire_cuts(datetime.now(UTC), gold=False)
    assert writer.exitcode == 0
    cuts = control.cuts("silver")
    assert [int(recorded_cut.commit_lsn) for recorded_cut in cuts] == list(
        range(count + 1 - len(cuts), count + 1)
    )
    assert removed == count - len(cuts) > 0
    assert all(
        recorded_cut.tables == {"a": recorded_cut.commit_lsn, "b": recorded_cut.commit_lsn}
        for recorded_cut in cuts
    )


def test_control_tables_are_tidied_without_losing_a_row(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    control.tidy()
    _record(lake_path, 1, 5)
    control.tidy()
    assert [recorded_cut.commit_lsn for recorded_cut in ControlTables(Lake(lake_path)).cuts("silver")] == [
        1,
        2,
        3,
        4,
        5,
    ]
