"""A small window is read from bronze's files: only files and row groups that may hold later rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.parquet import PartWriter
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.contract import CHANGES, CHANGES_SCHEMA, MEASURED, ROWS_SCHEMA
from deltasmelt.silver.plan.activity import activities_in
from deltasmelt.silver.run.bronze_window import files_after, rows_here
from tests.silver.histories import INT, TEXT, BronzeWriter, change, damage, placed, relation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.shapes import Relation

ONE, TWO, THREE = (
    relation(f"t{number}", [("id", INT), ("big", TEXT)], ["id"], relation_id=number) for number in (1, 2, 3)
)


class Files:
    """A lake whose files of bronze a test writes one by one."""

    def __init__(self, path: str) -> None:
        lake = Lake(path=path)
        self.uri = lake.uri("bronze", CHANGES)
        BronzeWriter(lake)

    def add(
        self,
        *groups: tuple[int, list[dict[str, object]]],
        schema: pa.Schema = CHANGES_SCHEMA,
        measured: Sequence[str] = MEASURED,
    ) -> Path:
        """Commit a file with a row group for each LSN; return the file."""
        part = PartWriter(self.uri, "stream", schema=schema, measured=measured)
        for lsn, rows in groups:
            part.write(pa.Table.from_pylist(placed(lsn, rows), schema=CHANGES_SCHEMA).cast(schema))
        (file,) = part.finish()
        open_existing(self.uri).commit([file], CHANGES_SCHEMA)
        return Path(self.uri, file.path)

    @property
    def bronze(self) -> Table:
        """The newest version."""
        return open_existing(self.uri)


@pytest.fixture
def files(lake_path: str) -> Files:
    return Files(lake_path)


def update(shape: Relation, **cells: object) -> dict[str, object]:
    return change(shape, "update", new=["1", None], **cells)


def test_files_of_other_relations_are_skipped(files: Files) -> None:
    """A file of an earlier release states no relation, so its rows may be of any."""
    message = change(ONE, "message", relation_id=None, table_schema=None, table_name=None)
    copied = [change(ONE, "snapshot", new=[str(key), "c"]) for key in range(5)]
    files.add((20, copied[:3]), schema=ROWS_SCHEMA)
    files.add((20, [*copied[3:], change(ONE, "snapshot_end")]), schema=ROWS_SCHEMA)
    files.add((21, [update(ONE), message]))
    files.add((22, [message]))
    files.add((23, [update(ONE), update(TWO)]))
    former = files.add((24, [update(TWO)]), measured=[name for name in MEASURED if name != "relation_id"])

    def rows(*relations: int) -> int:
        return files_after(files.bronze, Lsn(10), None, relations).rows

    assert [rows(), rows(1), rows(2), rows(3)] == [12, 12, 4, 4]
    assert files_after(files.bronze, Lsn(10)).snapshots == {1: 5}
    assert former.name in files_after(files.bronze, Lsn(10), None, [3]).paths


def test_row_groups_of_earlier_windows_stay_unread(files: Files) -> None:
    """Compaction joins files: a damaged page of an earlier window then stops no later window."""
    path = files.add(*((lsn, [update(ONE, old=["1", "x" * 1000])]) for lsn in (20, 21, 22)))
    damage(path, "old.list.element")
    later = files_after(files.bronze, Lsn(20))
    rows = rows_here(files.bronze, later, Lsn(20))
    assert rows is not None
    assert rows["commit_lsn"].to_pylist() == [21, 22]
    with pytest.raises((OSError, pa.ArrowException)):
        rows_here(files.bronze, later, Lsn(19))


def test_window_without_row_group_is_empty(files: Files) -> None:
    """A table property may keep the LSNs of a file out of the log; the file's own footer states them."""
    files.add((20, [update(ONE)]), measured=())
    later = files_after(files.bronze, Lsn(20))
    assert later.rows == 1
    rows = rows_here(files.bronze, later, Lsn(20))
    assert rows is not None
    assert activities_in(rows, {1: Lsn(20)}, Lsn(30)) == {}


def test_files_of_every_writer_are_counted(files: Files) -> None:
    """A copy's file has dictionaries; a message has no relation; an erased record has no values."""
    copied = [change(ONE, "snapshot", new=["1", "c"]), change(ONE, "snapshot_end")]
    message = change(ONE, "message", relation_id=None, table_schema=None, table_name=None)
    files.add((20, copied), schema=ROWS_SCHEMA)
    files.add((21, [message, change(TWO, "erased")]))
    files.add((22, [update(TWO, old=["1", "o"], unchanged=["big"]), change(ONE, "truncate"), update(TWO)]))
    rows = rows_here(files.bronze, files_after(files.bronze, Lsn(10)), Lsn(10))
    assert rows is not None
    found = activities_in(rows, dict.fromkeys((1, 2, 3), Lsn(10)), Lsn(30))
    assert {relation: {op: n for op, n in one.counts.items() if n} for relation, one in found.items()} == {
        1: {"snapshot": 1, "truncate": 1},
        2: {"update": 2},
    }
    assert (found[1].snapshot, found[1].truncated, len(found[1].barriers)) == (Lsn(20), (22, 1), 2)
    assert (found[2].facts.old_tuples, found[2].facts.moved_unchanged_toast) == (1, 1)
    assert found[2].facts.unchanged_toast == {"big"}
