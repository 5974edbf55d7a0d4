"""The cached application transactions of a log equal `deltalake`'s at every version."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake

from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.lake.folder_table import FolderTable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = pa.table({"a": [1]})
APPS = [f"app:{n}" for n in range(6)]


def commit(uri: Path, **versions: int) -> None:
    marks = [Transaction(app.replace("_", ":"), version) for app, version in versions.items()]
    write_deltalake(
        uri,
        ROWS,
        mode="append",
        commit_properties=CommitProperties(app_transactions=marks),
        post_commithook_properties=PostCommitHookProperties(
            create_checkpoint=False, cleanup_expired_logs=False
        ),
    )


def same(table: FolderTable) -> dict[str, int | None]:
    """Return the cached versions after a comparison with `deltalake`'s."""
    versions = {app: table.transaction_version(app) for app in APPS}
    assert versions == {app: DeltaTable.transaction_version(table, app) for app in APPS}, table.version()
    return versions


@pytest.fixture
def reads() -> Callable[[], Any]:
    """Return a guard that counts passes over a log."""

    def counting() -> Any:
        counting.passes = 0  # type: ignore[attr-defined]

        def guard(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
            if door is Effect.READ_FILE and where.endswith("_delta_log"):
                counting.passes += 1  # type: ignore[attr-defined]
            return effect()

        return guard

    return counting


@pytest.mark.parametrize("seed", range(5))
def test_at_every_version_it_is_what_deltalake_says(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    table = tmp_path / "t"
    commit(table)
    moving = FolderTable(str(table))
    for _ in range(25):
        apps = chance.sample(APPS, chance.randint(0, 3))
        commit(
            table, **{app.replace(":", "_"): chance.randint(0, 9) for app in apps}
        )  # they may fall as well
        if chance.random() < 0.2:
            DeltaTable(table).create_checkpoint()
        if chance.random() < 0.6:
            moving.update_incremental()
            same(moving)
        same(FolderTable(str(table)))
    for version in range(0, moving.version(), 3):
        moving.load_as_version(version)
        same(moving)
    moving.update_incremental()
    assert any(value is not None for value in same(moving).values())


def test_log_is_read_once_then_incrementally(tmp_path: Path, reads: Callable[[], Any]) -> None:
    commit(tmp_path / "t", app_0=1)
    table = FolderTable(str(tmp_path / "t"))
    with guarded(reads()):
        assert same(table)["app:0"] == 1
        same(table)
        assert reads.passes == 1  # type: ignore[attr-defined]
        commit(tmp_path / "t", app_0=2)
        assert table.transaction_version("app:0") == 1, "the handle has not moved"
        assert reads.passes == 1  # type: ignore[attr-defined]
        (tmp_path / "t" / "_delta_log" / f"{0:020}.json").unlink()  # what was read is not read again
        table.update_incremental()
        assert table.transaction_version("app:0") == 2
        assert reads.passes == 2  # type: ignore[attr-defined]


def test_second_handle_at_same_address_is_read_separately(tmp_path: Path) -> None:
    for number in range(20):
        commit(tmp_path / str(number), app_0=number)
        assert FolderTable(str(tmp_path / str(number))).transaction_version("app:0") == number


def test_checkpoint_replaces_removed_entry_in_log(tmp_path: Path) -> None:
    uri, log = tmp_path / "t", tmp_path / "t" / "_delta_log"
    commit(uri, app_0=1)
    table = FolderTable(str(uri))
    same(table)
    commit(uri, app_1=2)
    commit(uri, app_2=3)
    DeltaTable(uri).create_checkpoint()
    table.update_incremental()
    for version in (0, 1):
        (log / f"{version:020}.json").unlink()
    assert same(table) == {**dict.fromkeys(APPS), "app:0": 1, "app:1": 2, "app:2": 3}
    assert same(FolderTable(str(uri)))["app:1"] == 2


def test_expiring_ids_and_unknown_checkpoints_use_deltalake(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    commit(uri, app_0=1)
    table = FolderTable(str(uri))
    same(table)
    table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 day"})
    same(table)
    same(FolderTable(str(uri)))
    second_folder = tmp_path / "other"
    commit(second_folder, app_0=1)
    commit(second_folder, app_0=2)
    DeltaTable(second_folder).create_checkpoint()
    hint = second_folder / "_delta_log" / "_last_checkpoint"
    for content in (
        '{"version": 1, "size": 3, "parts": 2}',
        "[]",
        "no JSON",
        '{"version": 7}',
        '{"size": 1}',
    ):
        hint.write_text(content)
        assert FolderTable(str(second_folder), version=1).transaction_version("app:0") == 2, content


def test_unreadable_checkpoint_falls_back_to_deltalake(tmp_path: Path) -> None:
    uri, log = tmp_path / "t", tmp_path / "t" / "_delta_log"
    commit(uri, app_0=1)
    commit(uri, app_0=2)
    table = FolderTable(str(uri))
    (log / f"{1:020}.checkpoint.parquet").write_bytes(b"no Parquet")
    (log / "_last_checkpoint").write_text('{"version": 1, "size": 3}')
    assert same(table)["app:0"] == 2
