"""Bronze rewritten without a subject, and its former versions removed; kills at the effects."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.traces import Search
from deltasmelt.bronze.store.erasure import Found, Shapes, erase, find
from deltasmelt.bronze.store.position import position_of
from deltasmelt.pipelines.runtime.sweeping import former_rows, sweep, unnamed_files
from tests.silver.histories import INT, TEXT, BronzeWriter, change, insert, relation, update

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PEOPLE = relation("people", (("id", INT), ("note", TEXT)), ["id"], relation_id=1)
OTHERS = relation("others", (("id", INT), ("note", TEXT)), ["id"], relation_id=2)
SECRETS = ("quagga-first", "quagga-second", "quagga-third")
KEY = ("1",)
SHAPES = Shapes([PEOPLE])
CHANGING = {Effect.COMMIT, Effect.CHECKPOINT, Effect.DELETE_FILE, Effect.CLOSE_PART, Effect.WRITE_PART}


class KilledError(BaseException):
    """No code may catch this error, as no code catches a kill."""


def bronze_of(path: Path, *more: dict[str, Any]) -> Lake:
    """Write a subject between other rows: a snapshot, two changes and a delete; `more` follows."""
    lake = Lake(str(path))
    bronze = BronzeWriter(lake)
    bronze.snapshot(PEOPLE, 10, [["1", SECRETS[0]], ["2", "kept"]])
    bronze.commit(10)
    bronze.add(20, [update(PEOPLE, "1", SECRETS[1]), insert(OTHERS, "1", "other"), insert(PEOPLE, "3", "x")])
    bronze.commit(20)
    bronze.add(30, [update(PEOPLE, "1", SECRETS[2])])
    bronze.commit(30)
    bronze.add(
        40, [change(PEOPLE, "delete", old=["1", None], old_is_key=True), update(PEOPLE, "2", "kept again")]
    )
    bronze.commit(40)
    bronze.add(50, [insert(OTHERS, "5", "untouched"), *more])
    bronze.commit(50)
    return lake


def others(lake: Lake) -> list[Any]:
    """Return all records but the subject's."""
    changes = open_existing(lake.uri("bronze", "changes"))
    rows = [row for path in changes.paths() for row in changes.read_file(path).to_pylist()]
    kept = [row for row in rows if row["op"] != "erased" and not {*SECRETS} & {*(row["new"] or ())}]
    kept = [row for row in kept if (row["relation_id"], row["old"]) != (1, ["1", None])]
    return sorted((row["commit_lsn"], row["relation_id"], row["seq"], row["op"], row["new"]) for row in kept)


def forgotten(lake: Lake) -> Found:
    """Erase the subject, and remove all former versions."""
    changes = open_existing(lake.uri("bronze", "changes"))
    found = find(changes, SHAPES, [KEY], unnamed=former_rows(changes))
    erase(changes, found.places)
    changes.checkpoint()
    sweep(changes, sparing=True)
    sweep(changes)
    return found


def test_kill_at_effects_keeps_other_records(tmp_path: Path) -> None:
    """Each third kill: before and after effects of every kind."""
    before, number, ended = others(bronze_of(tmp_path / "0")), -2, False
    while not ended:
        number += 3
        lake = Lake(str(shutil.copytree(tmp_path / "0", tmp_path / str(number))))
        effects = 0

        def guard(kind: Effect, _where: str, effect: Callable[[], Any]) -> Any:
            nonlocal effects
            effects += kind in CHANGING
            if effects == (number + 1) // 2 and kind in CHANGING:  # noqa: B023 - used within this round
                if number % 2:  # noqa: B023
                    raise KilledError
                effect()
                raise KilledError
            return effect()

        with guarded(guard):
            try:
                forgotten(lake)
                ended = True
            except KilledError:
                assert others(lake) == before
        forgotten(lake)
        root = str(lake.root)
        assert list(Search(SECRETS).in_lake(root)) == []
        assert others(lake) == before
        changes = open_existing(lake.uri("bronze", "changes"))
        position = position_of(changes)
        assert position is not None
        assert position.frontier == 50
        assert unnamed_files(changes) == []
    assert number > 20


def test_rewrite_keeps_places_names_and_untouched_files(tmp_path: Path) -> None:
    lake = bronze_of(tmp_path)
    changes = open_existing(lake.uri("bronze", "changes"))
    files = set(changes.paths())
    found = find(changes, SHAPES, [KEY])
    assert (found.keys, found.moved, found.newest) == ({KEY}, set(), 40)
    assert found.texts == set(SECRETS)
    assert found.rows == 4
    assert len(erase(changes, found.places)) == 4
    assert len(files & set(changes.paths())) == 1
    assert find(changes, SHAPES, [KEY]).rows == 0
    rows = [row for path in changes.paths() for row in changes.read_file(path).to_pylist()]
    streamed = sorted((row["commit_lsn"], row["seq"], row["op"]) for row in rows if row["commit_lsn"] > 10)
    assert streamed == [
        (20, 0, "erased"), (20, 1, "insert"), (20, 2, "insert"), (30, 0, "erased"), (40, 0, "erased"),
        (40, 1, "update"), (50, 0, "insert"),
    ]  # fmt: skip
    assert [row["new"] for row in rows if row["op"] == "snapshot"] == [["2", "kept"]]
    assert all(row["end_of_tx"] for row in rows if (row["commit_lsn"], row["seq"]) == (30, 0))


def test_missing_file_stops_removal(tmp_path: Path) -> None:
    lake = bronze_of(tmp_path)
    changes = open_existing(lake.uri("bronze", "changes"))
    (tmp_path / "bronze/changes" / changes.paths()[0]).unlink()
    with pytest.raises(DefiniteError) as raised:
        sweep(changes)
    assert raised.value.code == "erasure-incomplete"
    left = [tmp_path / "bronze/changes" / path for path in changes.paths()[1:]]
    assert sum(pq.read_metadata(path).num_rows for path in left) > 0


def test_log_of_another_checkpoint_is_incomplete(tmp_path: Path) -> None:
    """Delta's checkpoints of version 2 have other files, which hold former rows' statistics."""
    changes = open_existing(bronze_of(tmp_path).uri("bronze", "changes"))
    changes.checkpoint()
    for name in ("_sidecars", f"{0:020}.checkpoint.6b1f.json"):
        left = tmp_path / "bronze/changes/_delta_log" / name
        left.mkdir()
        with pytest.raises(DefiniteError) as raised:
            sweep(changes, sparing=True)
        assert raised.value.code == "erasure-incomplete"
        left.rmdir()
    # Parts of entries that killed writers left, and a torn entry set aside, may hold values, too.
    log = tmp_path / "bronze/changes/_delta_log"
    for name in (
        f"{0:020}.json.torn",
        f".{1:020}.json.u.tmp",
        f"..{1:020}.json.u.tmp.crc",
        f".{99:020}.json.u.tmp",
    ):
        (log / name).write_text(SECRETS[0])
    assert sweep(changes, sparing=True).files == 0
    assert not [file for file in log.iterdir() if "t" in file.suffix[1:2]]


def test_composite_key_finds_only_its_row(tmp_path: Path) -> None:
    shape = relation("pairs", (("a", INT), ("b", TEXT), ("note", TEXT)), ["a", "b"], relation_id=7)
    lake = Lake(str(tmp_path))
    bronze = BronzeWriter(lake)
    bronze.add(20, [insert(shape, a, b, b) for a in "12" for b in "xy"])
    bronze.commit(20)
    old = ["1", "y", None]
    moved = change(shape, "update", old=old, old_is_key=True, new=["3", "y", "moved"])
    bronze.add(30, [moved, change(shape, "delete", old=["3", "y", None], old_is_key=True)])
    bronze.commit(30)
    changes = open_existing(lake.uri("bronze", "changes"))
    shapes = Shapes([shape])
    one = find(changes, shapes, [("3", "y")])
    assert (one.rows, one.moved) == (2, {("1", "y")})
    found = find(changes, shapes, [("3", "y"), ("1", "y"), ("1", "never")])
    assert sorted(place for places in found.places.values() for place in places) == [
        (7, 20, 1), (7, 30, 0), (7, 30, 1),
    ]  # fmt: skip
    assert (found.moved, found.keys) == (set(), {("1", "y"), ("3", "y")})
    assert find(changes, shapes, [("y", "1")]).rows == 0


def keyed(key: list[str], **more: Any) -> Any:
    columns = (("id", INT), ("code", TEXT))
    return relation("people", columns, key, relation_id=1, **more)


@pytest.mark.parametrize(
    "shapes",
    [
        [keyed(["id"], identity="i", identity_columns=["code"])],
        # another key before: old rows have its columns alone
        [keyed(["code"]), keyed(["id"], from_lsn=5)],
        [keyed(["id"]), keyed(["id", "code"], from_lsn=5)],
        # the key's column was added later
        [
            relation("people", (("code", TEXT),), ["code"], relation_id=1, attnums=[2]),
            keyed(["id"], from_lsn=5),
        ],
        # a recreated table with another key
        [
            keyed(["id"]),
            relation("people", (("id", INT), ("code", TEXT)), ["code"], relation_id=2, from_lsn=5),
        ],
    ],
)
def test_key_without_certain_records_is_refused(shapes: list[Any]) -> None:
    with pytest.raises(DefiniteError) as raised:
        Shapes(shapes)
    assert raised.value.code == "erasure-identity"
