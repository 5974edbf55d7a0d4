"""Each effect on the lake fails once at every point, and the power fails at every point.

Afterwards, on a sound lake, bronze equals the log row for row, and everything confirmed was durable.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store.marks import CONFIRM_APP
from deltasmelt.bronze.store.position import read_position
from deltasmelt.bronze.store.relations import read_relations
from tests.bronze.faults import OF_THE_SOURCE, Disk, Fault, Faults, When
from tests.bronze.replaying import bronze_rows
from tests.bronze.written_log import LOG, Process, Server, expected, plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.lsn import Lsn


WHEN: Final[tuple[When, ...]] = ("before", "after")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits, so that every periodic action happens within seven transactions."""
    monkeypatch.setattr("deltasmelt.bronze.stream.session.WRITE_BYTES", 2_000)
    monkeypatch.setattr("deltasmelt.bronze.lake.parquet.FILE_BYTES", 6_000)
    monkeypatch.setattr("deltasmelt.bronze.lake.place.Folder.checkpoint_interval", 4)
    monkeypatch.setattr("deltasmelt.bronze.store.sink._COMPACT_AFTER_COMMITS", 3)
    monkeypatch.setattr("deltasmelt.bronze.store.sink._MANY_FILES", 3)
    monkeypatch.setattr("deltasmelt.bronze.store.sink._TIDY_EVERY", 8)


def assert_whole(lake_path: str) -> None:
    """Assert that bronze equals the log, and that a version names every file in bronze's folder."""
    assert plain(bronze_rows(lake_path)) == expected(LOG)
    table = DeltaTable(f"{lake_path}/bronze/changes")
    file_names = {Path(uri).name for uri in table.file_uris()}
    joined = set(table.vacuum(0, dry_run=True, enforce_retention_duration=False))
    stored = {path.name for path in Path(lake_path, "bronze/changes").glob("*.parquet")}
    assert file_names <= stored <= file_names | joined
    assert {len(relation.columns) for relation in read_relations(Lake(lake_path))} == {1, 2}
    assert ControlTables(Lake(lake_path)).open_errors() == []


def run_with(fault: Fault, lake_path: str) -> Faults:
    server = Server(LOG)
    faults = Faults(fault)
    with guarded(faults):
        Process(server, lake_path).run()
    position = read_position(Lake(lake_path))
    assert position is not None
    assert server.confirmed <= position.confirm
    Process(server, lake_path).run(sessions=1)
    assert_whole(lake_path)
    return faults


def places(folder: Path, *, every: int) -> list[Fault]:
    """Return every n-th effect of a run without a fault, with faults before and after the effect."""
    faults = Faults()
    with guarded(faults):
        Process(Server(LOG), str(folder / "sound")).run(sessions=1)
    assert_whole(str(folder / "sound"))
    assert set(faults.seen) == set(Effect) - OF_THE_SOURCE - {Effect.DELETE_FILE}, "every door is passed"
    listed: list[Fault] = [
        Fault(door, number, when)
        for door, count in faults.seen.items()
        for number in range(1, count + 1)
        for when in WHEN
    ]
    return listed[::every]


@pytest.mark.usefixtures("small")
def test_a_failed_effect_leaves_bronze_as_the_log(tmp_path: Path) -> None:
    for fault in places(tmp_path, every=121):
        run_with(fault, str(tmp_path / f"{fault.door} {fault.number} {fault.when}"))


@pytest.mark.torture
@pytest.mark.usefixtures("small")
def test_each_failed_effect_leaves_bronze_as_the_log(tmp_path: Path) -> None:
    for fault in places(tmp_path, every=1):
        run_with(fault, str(tmp_path / f"{fault.door} {fault.number} {fault.when}"))


@pytest.mark.usefixtures("small")
def test_files_commits_and_confirmations_are_durable_in_order(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    log = folder / "lake/bronze/changes/_delta_log"
    disk = Disk(folder)
    named_count, confirmed = 0, []

    def look(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        nonlocal named_count
        result = disk(door, where, effect)
        if door is Effect.COMMIT:  # the effect is over, so the entry is there; its files were flushed before
            for entry in (folder / "lake").rglob("_delta_log/*.json"):
                for line in entry.read_text().splitlines():
                    added = json.loads(line).get("add")
                    if added is not None and (entry.parent.parent / added["path"]).exists():
                        assert disk.is_flushed(entry.parent.parent / added["path"]), added["path"]
                        named_count += 1
        return result

    def check(durable: Lsn) -> None:
        entries = sorted(log.glob("*.json"))
        places = [
            mark["version"]
            for entry in entries
            if disk.is_flushed(entry)
            for line in entry.read_text().splitlines()
            if (mark := json.loads(line).get("txn")) and mark["appId"] == CONFIRM_APP
        ]
        assert durable in places
        assert all(disk.is_flushed(entry) for entry in entries)
        confirmed.append(durable)

    with guarded(look):
        Process(Server(LOG, on_confirm=check), str(folder / "lake")).run(sessions=1)
    assert named_count > len(LOG)
    assert len(confirmed) > len(LOG)
    for table in ("bronze/relations", "control/errors", "control/storage"):
        for file in (folder / "lake" / table).rglob("*.*"):
            assert file.name == "_last_checkpoint" or disk.is_flushed(file), file


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("names_last", [False, True], ids=["names are lost", "files are empty"])
@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.torture)])
def test_a_power_cut_loses_nothing_confirmed(tmp_path: Path, *, names_last: bool, step: int) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    server = Server(LOG)
    cuts: list[tuple[Path, Lsn]] = []
    moments = (Effect.COMMIT, Effect.CHECKPOINT, Effect.CREATE_TABLE)
    effects, moments_seen = 0, 0

    def cut(door: Effect, _where: str) -> None:
        nonlocal effects, moments_seen
        effects += 1
        if door in moments or effects % 29 == 0:
            moments_seen += 1
            if moments_seen % step:
                return
            cuts.append((tmp_path / f"cut {len(cuts)} {door}", server.confirmed))
            disk.cut(cuts[-1][0], names_last=names_last)

    disk = Disk(folder, cut)
    with guarded(disk):
        Process(server, str(folder / "lake")).run(sessions=1)
    assert moments_seen > 30
    for disk_left, confirmed in cuts:
        lake_path = str(disk_left / "lake")
        Process(Server(LOG, confirmed), lake_path).run(sessions=1)
        assert_whole(lake_path)
