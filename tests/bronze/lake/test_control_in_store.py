"""The control tables of a lake in a store: few requests, correct in parallel with other processes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import obstore
import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.lake import cached_table, control_table, objects
from deltasmelt.bronze.lake.control import Cut, OpenError, Run
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.place import Location, in_store
from deltasmelt.bronze.lsn import Lsn
from tests.object_store import Faults

if TYPE_CHECKING:
    from tests.object_store import ObjectStore

pytestmark = pytest.mark.process


def cut(lsn: int) -> Cut:
    return Cut("silver", Lsn(lsn), None, {"orders": lsn})


def run(lsn: int) -> Run:
    return Run("silver", "orders", "incremental", Lsn(lsn - 1), Lsn(lsn))


def lsns(control: ControlTables) -> list[int]:
    return [int(recorded_cut.commit_lsn) for recorded_cut in control.cuts("silver")]


def test_cycle_records_in_two_requests_per_table(
    store: ObjectStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recording takes two requests a table, and reading the newest state takes one."""
    monkeypatch.setattr(control_table, "_JUST_PUT", 60)
    control = ControlTables(Lake(place))
    counts: list[Counter[str]] = []
    for lsn in range(1, 32):
        store.forget()
        latest = control.latest_cut("silver")
        assert latest is None or latest.commit_lsn == lsn - 1
        assert control.open_errors() == []
        control.record_runs([run(lsn)])
        control.record_cut(cut(lsn))
        counts.append(Counter(request.method for request in store.requests()))
    usual = Counter({"PUT": 4, "GET": 1, "HEAD": 1})  # two more where the last put was not just now
    assert [count for count in counts if count == usual] == [usual] * 26, (
        "not the first two, and no checkpoint"
    )
    second_control = ControlTables(Lake(place))
    assert lsns(second_control) == lsns(control) == list(range(1, 32))
    assert len(second_control.runs()) == len(control.runs()) == 31


def test_concurrent_records_of_processes_are_seen_without_loss(store: ObjectStore, place: str) -> None:
    first, second = ControlTables(Lake(place)), ControlTables(Lake(place))
    first.record_cut(cut(1))
    assert lsns(second) == [1]
    for lsn in range(2, 26, 3):
        first.record_cut(cut(lsn))
        second.record_cut(cut(lsn + 1))
        second.record_cut(cut(lsn + 2))
        assert lsns(first) == lsns(second) == list(range(1, lsn + 3))
    store.set_faults(Faults(lose=r"cuts/_delta_log/\d+\.json$"))
    first.record_cut(cut(26))
    second.record_cut(cut(27))
    assert lsns(first) == lsns(second) == lsns(ControlTables(Lake(place))) == list(range(1, 28))


def test_unread_rows_are_changed_compacted_and_closed(
    store: ObjectStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that the writer has not read back are changed, compacted and closed."""
    monkeypatch.setattr(control_table, "COMPACT_ABOVE", 12)
    control = ControlTables(Lake(place))
    for name in ("a", "b"):
        control.open_error(OpenError("table", name, "table-failed", "because"))
    control.close_errors("table", "b")
    assert [error.name for error in control.open_errors()] == ["a"]
    assert [error.name for error in ControlTables(Lake(place)).open_errors()] == ["a"]
    for lsn in range(1, 16):
        control.record_cut(cut(lsn))
    assert lsns(control) == lsns(ControlTables(Lake(place))) == list(range(1, 16))
    cuts = DeltaTable(f"{place}/control/cuts", storage_options=store.options())
    assert len(cuts.file_uris()) < 10, "they were compacted"


def test_the_log_is_listed_again_after_a_while(
    store: ObjectStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = ControlTables(Lake(place))
    control.record_cut(cut(1))
    control.record_cut(cut(2))
    for module in (cached_table, control_table):
        monkeypatch.setattr(module, "SELDOM", 0)
    ControlTables(Lake(place)).record_cut(cut(3))
    store.forget()
    assert lsns(control) == [1, 2, 3]
    assert any("list-type" in request.query for request in store.requests())
    store.forget()
    control.record_cut(cut(4))
    assert any("list-type" in request.query for request in store.requests()), "an append lists, too"
    assert lsns(ControlTables(Lake(place))) == [1, 2, 3, 4]


def test_removed_or_rolled_back_log_gets_no_entry(
    store: ObjectStore, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_table, "_JUST_PUT", 0)
    control = ControlTables(Lake(place))
    for lsn in range(1, 5):
        control.record_cut(cut(lsn))
    for version in (3, 4):
        obstore.delete(*objects._object(place / "control/cuts", f"_delta_log/{version:020}.json"))
    control.record_cut(cut(9))
    assert lsns(control) == lsns(ControlTables(Lake(place))) == [1, 2, 9]
    objects.delete_below(place, "control/cuts")
    control.record_cut(cut(10))
    control.record_cut(cut(11))
    assert lsns(control) == lsns(ControlTables(Lake(place))) == [10, 11]


def test_no_error_says_a_key_of_a_store(store: ObjectStore, place: str) -> None:
    key = "a-key-of-another-place"
    in_store(f"{place}/other", {**store.options(), "aws_secret_access_key": key})
    control = ControlTables(Lake(place))
    control.open_error(OpenError("table", "a", "table-failed", f"denied: {key}"))
    messages = [error.message for error in ControlTables(Lake(place)).open_errors()]
    assert len(messages) == 1
    assert key not in messages[0]
    assert messages[0].startswith("denied: ")
