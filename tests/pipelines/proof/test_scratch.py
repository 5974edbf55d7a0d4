"""Temporary objects of commands in an object store are removed afterwards, and nothing else is."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lake import copies as scratches
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.copies import remove_left, scratch_lake
from deltasmelt.bronze.lake.delta import remove_workspaces
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.place import Location, in_store
from deltasmelt.silver.fresh import _remove
from deltasmelt.silver.rebuild import SCRATCH
from tests.object_store import Faults

if TYPE_CHECKING:
    from tests.object_store import ObjectStore

pytestmark = pytest.mark.process

ROOT = "s3://lake/scratch"


@pytest.fixture(scope="module")
def root(store_of_all: ObjectStore) -> Location:
    return in_store(ROOT, store_of_all.options())


@pytest.fixture(scope="module")
def store(store_of_all: ObjectStore, root: Location) -> ObjectStore:
    store_of_all.forget()
    objects.replace(root, "silver/kept", b"1")
    return store_of_all


def names(store: ObjectStore, root: Location) -> set[str]:
    """Return the objects put since `forget` that still exist."""
    put = {request.path for request in store.requests("PUT", "/lake/scratch/") if request.status == 200}
    return {path for path in put if objects.read(root, path.removeprefix("/lake/scratch/")) is not None}


def test_the_copy_of_the_sources_rows(store: ObjectStore, root: Location) -> None:
    with scratch_lake(Lake(root), tasks_are_local=False) as scratch:
        for number in range(120):  # more than a page of the store's answers
            objects.replace(scratch.root, f"silver/t/{number}", b"1")
    assert names(store, root) == {"/lake/scratch/silver/kept"}


@pytest.mark.parametrize("by", ["the next comparison", "maintenance"])
def test_store_copy_of_killed_process_is_removed(
    store: ObjectStore, root: Location, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(scratches, "_LEFT_SECONDS", 1.0)
    objects.replace(root, "_verify/killed/bronze/changes/1", b"1")
    objects.replace(root, "_verify/living/bronze/changes/1", b"1")
    time.sleep(2.1)  # the store counts in seconds
    objects.replace(root, "_verify/living/alive", b"")
    if by == "maintenance":
        assert remove_left(Lake(root)) == [f"{root}/_verify/killed"]
    else:
        with scratch_lake(Lake(root), tasks_are_local=False):
            pass
    assert set(objects.newest_below(root, "_verify")) == {"living"}
    objects.delete_below(root, "_verify")


def test_local_copy_of_killed_process_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a local lake, and in the temporary folder for a remote lake; foreign folders stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lake = Lake(str(tmp_path / "lake"))
    copies = "lake/_verify/copy-killed", "lake/_verify/copy-living"
    for name in ("smelt-verify-killed", *copies, "smelt-other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "rows").write_bytes(b"1")
        for path in (tmp_path / name / "rows", tmp_path / name):
            os.utime(path, (1, 1))
    with scratch_lake(Lake(catalog="c"), tasks_are_local=True) as scratch:
        os.utime(tmp_path / "lake/_verify/copy-living")
        assert remove_left(lake) == [str(tmp_path / "lake/_verify/copy-killed")]
        assert Path(str(scratch.path)).is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {"lake", "smelt-other"}
    assert [path.name for path in (tmp_path / "lake/_verify").iterdir()] == ["copy-living"]


def test_a_living_process_touches_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratches, "_TOUCH_SECONDS", 0.02)
    with scratch_lake(Lake(str(tmp_path)), tasks_are_local=True) as scratch:
        place = Path(str(scratch.path))
        os.utime(place, (1, 1))
        end = time.monotonic() + 10
        while place.stat().st_mtime < 2 and time.monotonic() < end:
            time.sleep(0.01)
        assert place.stat().st_mtime > 2
    assert list(tmp_path.iterdir()) == []


def test_a_look_ahead_at_a_fresh_table(store: ObjectStore, root: Location) -> None:
    objects.replace(root, "_fresh/one/silver/t/1", b"1")
    objects.replace(root, "_fresh/other/silver/t/1", b"1")
    _remove(Lake(root / "_fresh/one"))
    assert names(store, root) == {"/lake/scratch/silver/kept", "/lake/scratch/_fresh/other/silver/t/1"}
    _remove(Lake(root / "_fresh/other"))


def test_what_a_rebuild_left(store: ObjectStore, root: Location) -> None:
    remove_workspaces(Lake(root), SCRATCH, "rebuild")
    objects.replace(root, f"{SCRATCH}/one/silver/t/1", b"1")
    remove_workspaces(Lake(root), SCRATCH, "rebuild")
    assert names(store, root) == {"/lake/scratch/silver/kept"}


def test_store_refusing_deletion_ends_no_command(
    store: ObjectStore, root: Location, caplog: pytest.LogCaptureFixture
) -> None:
    objects.replace(root, "_fresh/one/silver/t/1", b"1")
    store.set_faults(Faults(denied="DELETE|POST"))
    _remove(Lake(root / "_fresh/one"))
    assert "could not be removed" in caplog.text
    assert "AccessDenied" in caplog.text
    store.set_faults()
