"""What commands put into an object store for themselves is gone afterwards, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bronze.lake import objects
from bronze.lake.location import Lake
from bronze.lake.stores import register
from pipelines.proof.scratch import scratch_lake
from silver.fresh import _remove
from silver.rebuild import SCRATCH, remove_scratch
from tests.object_store import Faults

if TYPE_CHECKING:
    from tests.object_store import ObjectStore

pytestmark = pytest.mark.process

ROOT = "s3://lake/scratch"


@pytest.fixture(scope="module")
def store(store_of_all: ObjectStore) -> ObjectStore:
    store_of_all.forget()
    register(ROOT, store_of_all.options())
    objects.replace(ROOT, "silver/kept", b"1")
    return store_of_all


def names(store: ObjectStore) -> set[str]:
    """Objects below the lake, by what was put and deleted since `forget`, and the one that is kept."""
    put = {one.path for one in store.requests("PUT", "/lake/scratch/") if one.status == 200}
    return {path for path in put if objects.read(ROOT, path.removeprefix("/lake/scratch/")) is not None}


def test_the_copy_of_the_sources_rows(store: ObjectStore) -> None:
    with scratch_lake(Lake(ROOT), tasks_are_local=False) as scratch:
        for number in range(120):  # more than a page of the store's answers
            objects.replace(str(scratch.path), f"silver/t/{number}", b"1")
    assert names(store) == {"/lake/scratch/silver/kept"}


def test_a_look_ahead_at_a_fresh_table(store: ObjectStore) -> None:
    objects.replace(ROOT, "_fresh/one/silver/t/1", b"1")
    objects.replace(ROOT, "_fresh/other/silver/t/1", b"1")
    _remove(Lake(f"{ROOT}/_fresh/one"))
    assert names(store) == {"/lake/scratch/silver/kept", "/lake/scratch/_fresh/other/silver/t/1"}
    _remove(Lake(f"{ROOT}/_fresh/other"))


def test_what_a_rebuild_left(store: ObjectStore) -> None:
    remove_scratch(Lake(ROOT))
    objects.replace(ROOT, f"{SCRATCH}/one/silver/t/1", b"1")
    remove_scratch(Lake(ROOT))
    assert names(store) == {"/lake/scratch/silver/kept"}


def test_a_store_that_refuses_to_delete_ends_no_command(
    store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    objects.replace(ROOT, "_fresh/one/silver/t/1", b"1")
    store.set_faults(Faults(denied="DELETE|POST"))
    _remove(Lake(f"{ROOT}/_fresh/one"))
    assert "could not be removed" in caplog.text
    assert "AccessDenied" in caplog.text
    store.set_faults()
