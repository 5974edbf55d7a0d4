"""A reader with a lake in an object store writes each change once, also after lost answers of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store.position import read_position
from tests.bronze.replaying import assert_each_change_once, execute, read_all, read_snapshot
from tests.bronze.running import confirmed
from tests.object_store import Faults

if TYPE_CHECKING:
    from typing import Any

    from deltasmelt.bronze.config.sections import SourceSettings
    from tests.object_store import ObjectStore

pytestmark = pytest.mark.process


def changes(root: str) -> list[dict[str, Any]]:
    table = delta.open_existing(Lake(root).uri("bronze", "changes"))
    rows = [row for path in table.paths() for row in table.read_file(path).to_pylist()]
    return sorted(rows, key=lambda row: (row["commit_lsn"], row["op"] != "snapshot", row["seq"]))


@pytest.mark.parametrize(
    "faults",
    [
        Faults(),
        Faults(lose=r"changes/_delta_log/\d+\.json"),
        Faults(lose=r"changes/stream-"),
        Faults(lose=r"relations/_delta_log/\d+\.json"),
        Faults(unavailable=1.0),
    ],
    ids=["none", "lost-entry", "lost-part", "lost-shape", "unavailable"],
)
def test_each_change_is_there_once(
    store: ObjectStore, place: str, source: SourceSettings, faults: Faults
) -> None:
    execute(
        source, "CREATE TABLE items (id int PRIMARY KEY, name text)", "INSERT INTO items VALUES (0, 'zero')"
    )
    read_all(source, place)
    assert read_snapshot(Lake(place), TableName("public", "items")) is not None
    execute(
        source,
        "ALTER TABLE items ADD COLUMN extra int",
        *(f"INSERT INTO items VALUES ({number}, 'n', {number})" for number in range(1, 21)),
        "UPDATE items SET name = 'm' WHERE id < 5",
        "DELETE FROM items WHERE id = 3",
    )
    store.set_faults(faults)
    read_all(source, place)
    store.set_faults()
    rows = changes(place)
    assert_each_change_once(rows)
    operations = [row["op"] for row in rows]
    assert [operations.count(operation) for operation in ("snapshot", "insert", "update", "delete")] == [
        1,
        20,
        5,
        1,
    ]
    position = read_position(Lake(place))
    assert position is not None
    assert confirmed(source) == position.confirm
