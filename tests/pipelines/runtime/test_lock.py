from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.leases import leased, object_of, writing_of
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.place import in_store
from deltasmelt.pipelines.private import why_unwritable
from deltasmelt.pipelines.runtime.locks import lake_lock, writing

if TYPE_CHECKING:
    from tests.object_store import ObjectStore

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.pipelines.runtime.locks import lake_lock
with lake_lock(Lake(path=sys.argv[1]), ("bronze", "silver"), command="smelt run"):
    print("held", flush=True)
    sys.stdin.read()
"""
LEASES: Final = ("bronze", "silver", writing_of("silver"))
QUICK: Final = 2.0
"""Seconds of a short lease."""


def test_second_start_is_rejected_naming_holder(lake_path: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, lake_path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        lake = Lake(path=lake_path)
        with pytest.raises(DefiniteError) as raised, lake_lock(lake, ("silver",), command="smelt silver"):
            pass
        assert raised.value.code == "already-running"
        assert f"`smelt run`, process {holder.pid}" in str(raised.value)
        with lake_lock(lake, ("gold",), command="smelt gold"):
            pass  # another stage may run beside it
        holder.kill()
        holder.wait()
        with lake_lock(lake, ("silver",), command="smelt silver"):
            pass  # however the holder ended, the lake is free


@pytest.mark.parametrize("nowhere", ["/proc/nowhere/lake", f"{__file__}/lake"])
def test_place_that_cannot_be_has_code_and_remedy(nowhere: str) -> None:
    lake = Lake(path=nowhere)
    with pytest.raises(ConfigurationError) as locked, lake_lock(lake, ("bronze",), command="smelt run"):
        pass
    assert locked.value.code == "lake-folder"
    # A later failure is an outage of the file system, which a run waits out.
    with pytest.raises(OSError), writing(lake, "silver"):
        pass
    assert (locked.value.where, bool(locked.value.remedy)) == (nowhere, True)
    assert why_unwritable(Path(nowhere)) is not None, "check finds it, too"


def test_trial_of_a_folder_leaves_nothing(tmp_path: Path) -> None:
    assert why_unwritable(tmp_path / "a" / "b") is None
    assert list(tmp_path.iterdir()) == []


def test_writer_of_layer_is_awaited_across_processes(lake_path: str) -> None:
    holder = HOLDER.replace("lake_lock", "writing").replace(
        '("bronze", "silver"), command="smelt run"', '"silver"'
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, lake_path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        lake, entered = Lake(path=lake_path), threading.Event()

        def write() -> None:
            with writing(lake, "silver"):
                entered.set()

        thread = threading.Thread(target=write)
        thread.start()
        with writing(lake, "gold"):
            assert not entered.wait(0.5)
        process.kill()
        assert entered.wait(10), "however the holder ended, the layer is free"
        thread.join()


def test_object_store_is_locked_by_leases_without_files(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lake = Lake(path=place)
    with lake_lock(lake, ("bronze", "silver"), command="smelt run"), writing(lake, "silver"):
        objects_held = {name: objects.read(lake.root, object_of(name)) for name in LEASES}
    freed = {name: objects.read(lake.root, object_of(name)) for name in LEASES}
    with lake_lock(lake, ("bronze",), command="smelt bronze"):
        pass  # who has ended is not waited for
    leases = {name: json.loads(stored.body) for name, stored in objects_held.items() if stored is not None}
    assert {name: lease["command"] for name, lease in leases.items()} == {
        "bronze": "smelt run", "silver": "smelt run", "silver.writing": "writing silver",
    }  # fmt: skip
    assert all(lease["holder"] for lease in leases.values())
    assert [json.loads(stored.body)["holder"] for stored in freed.values() if stored is not None] == [
        None
    ] * 3
    assert list(tmp_path.iterdir()) == []


def test_stage_in_object_store_is_not_started_twice(store: ObjectStore, place: str) -> None:
    lake = Lake(path=in_store(place, store.options(), lease=QUICK))
    with leased(lake.root, "silver", command="smelt silver", wait=False):
        with pytest.raises(DefiniteError) as raised, lake_lock(lake, ("silver",), command="smelt run"):
            pass
        assert raised.value.code == "already-running"
        assert "`smelt silver`" in raised.value.message
        with lake_lock(lake, ("gold",), command="smelt gold"):
            pass  # another stage may run beside it


def test_new_lake_folder_is_private_and_existing_unchanged(tmp_path: Path) -> None:
    new_folder, existing = tmp_path / "above" / "made", tmp_path / "there"
    existing.mkdir()
    existing.chmod(0o755)
    for folder in (new_folder, existing):
        with lake_lock(Lake(path=str(folder)), ("bronze",), command="smelt bronze"):
            pass
        with writing(Lake(path=str(folder)), "silver"):
            pass
    assert (new_folder.stat().st_mode & 0o777, existing.stat().st_mode & 0o777) == (0o700, 0o755)
