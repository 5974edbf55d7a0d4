"""A table's position follows from the table's content, not from version numbers. Needs no Spark."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from deltasmelt.bronze.errors import TableError
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.foreign_commits import commit_of
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.silver import rebuild
from deltasmelt.silver.run.position import Held, Position
from deltasmelt.silver.run.stored import SILVER_APP
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.run.unsigned import may_be_own
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, relation

if TYPE_CHECKING:
    from deltasmelt.silver.schema.catalog import SilverTable

ID = pa.field("id", pa.int32(), metadata={"comment": "attribute 1"})
ROWS = pa.table({"id": [1, 2]}, schema=pa.schema([ID]))


class Place:
    """A table `t` with windows up to LSN 30, named by three cuts, and by a fourth without a change at 40."""

    def __init__(self, path: str) -> None:
        self.lake = Lake(path)
        self.control = ControlTables(self.lake)
        self.shape = relation("t", [("id", INT)], ["id"], relation_id=1)
        (self.table,) = silver_catalog([self.shape], SilverSettings()).values()
        self.folder = Path(self.lake.uri("silver", "t"))
        for lsn in (10, 20, 30):
            self.window(lsn)
            self.cut(lsn, lsn)
        self.cut(40, 30)

    def window(self, lsn: int) -> None:
        mark = CommitProperties(app_transactions=[Transaction(SILVER_APP, lsn)])
        write_deltalake(self.folder, ROWS, mode="append", commit_properties=mark)

    def cut(self, lsn: int, mark: int | None) -> None:
        versions = {"t": DeltaTable(self.folder).version(), "other": lsn}
        marks = {} if mark is None else {"t": Lsn(mark)}
        self.control.record_cut(Cut("silver", Lsn(lsn), None, versions, marks=marks))

    def put_back(self, version: int) -> None:
        """Remove later versions, like a restore from a backup."""
        for entry in (self.folder / "_delta_log").glob("*.json"):
            if int(entry.stem) > version:
                entry.unlink()

    def held(self, snapshot: int | None = None, table: SilverTable | None = None) -> Held:
        """Return the table's position as found by the next start of the process."""
        log, last = SilverLog(self.lake, writes=True), self.control.latest_cut("silver")
        stored = log.read("t")
        assert stored is not None
        within = None if snapshot is None else Lsn(snapshot)
        return Position(self.control, log).held(table or self.table, stored, last, within, [self.shape])

    def named(self) -> dict[int, int | None]:
        """Return the version that each cut names."""
        return {int(cut.commit_lsn): cut.tables.get("t") for cut in self.control.cuts("silver")}


@pytest.fixture
def place(lake_path: str) -> Place:
    return Place(lake_path)


def test_empty_windows_are_recognized_by_cut_and_mark(place: Place) -> None:
    assert place.held() == Held(Lsn(40), is_in_cut=True)
    place.window(50)  # killed before the cut
    assert place.held() == Held(Lsn(50), is_in_cut=False)
    DeltaTable(place.folder).optimize.compact()
    assert place.held() == Held(Lsn(50), is_in_cut=False)
    assert place.named() == {10: 0, 20: 1, 30: 2, 40: 2}


@pytest.mark.parametrize("others", [0, 1, 4])
def test_rolled_back_table_resumes_at_mark(place: Place, others: int) -> None:
    """The number of versions added by foreign commits does not matter."""
    place.put_back(1)
    for number in range(others):
        DeltaTable(place.folder).alter.set_table_properties({"delta.checkpointInterval": str(90 + number)})
    assert place.held().lsn == Lsn(20)
    assert place.named() == {10: 0, 20: 1, 30: None, 40: None}, "versions come again with other rows"
    assert place.held() == Held(Lsn(20), is_in_cut=True)


def test_lost_empty_commit_means_rolled_back_table(place: Place) -> None:
    DeltaTable(place.folder).alter.set_table_properties({"delta.checkpointInterval": "99"})
    place.cut(50, 30)
    place.put_back(2)
    assert place.held() == Held(Lsn(40), is_in_cut=True)
    assert place.named() == {10: 0, 20: 1, 30: 2, 40: 2, 50: None}


def test_backup_of_other_history_is_no_cut_version(place: Place) -> None:
    """After one restore and further windows, cuts of both histories name the same versions."""
    shutil.copytree(place.folder, place.folder.parent.parent / "backup")
    place.put_back(0)
    assert place.held().lsn == Lsn(10)
    for lsn in (60, 70):
        place.window(lsn)
        place.cut(lsn, lsn)
    shutil.rmtree(place.folder)
    shutil.copytree(place.folder.parent.parent / "backup", place.folder)
    assert place.held() == Held(Lsn(30), is_in_cut=False)
    assert place.named() == {10: 0, 20: None, 30: None, 40: None, 60: None, 70: None}


def test_torn_newest_entry_means_rolled_back_table(place: Place) -> None:
    entry = max((place.folder / "_delta_log").glob("*.json"))
    entry.write_bytes(b"")
    assert place.held().lsn == Lsn(20)
    assert place.named() == {10: 0, 20: 1, 30: None, 40: None}


def test_foreign_row_changes_stop_table_until_snapshot(place: Place) -> None:
    DeltaTable(place.folder).restore(0)
    for snapshot in (None, 40):
        with pytest.raises(TableError) as caught:
            place.held(snapshot)
        assert caught.value.code == "table-written-by-others"
        assert "version 3 (RESTORE) of silver.t" in caught.value.message
        assert "smelt snapshot FILE public.t; or" in str(caught.value.remedy)
    assert place.held(41).lsn == Lsn(40)
    with pytest.raises(TableError) as caught:
        place.held(41, replace(place.table, history=True))
    assert "smelt snapshot" not in str(caught.value.remedy)
    assert "smelt rebuild FILE silver public.t" in str(caught.value.remedy)


def test_rebuild_gives_no_version_up_for_outage(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the rebuild would sign the rows of the foreign commit."""
    DeltaTable(place.folder).restore(0)
    log = SilverLog(place.lake)
    newest = log.read("t")
    assert newest is not None

    def fails(*_: object) -> None:
        raise OSError("503 Service Unavailable")

    monkeypatch.setattr(SilverLog, "read_at", fails)
    with pytest.raises(OSError, match="503"):
        rebuild._before_others(log, place.table, newest, -1, Lsn(0))


def test_unsigned_commits_of_earlier_release_stop_no_table(place: Place) -> None:
    """The earlier release committed after its last cut."""
    place.cut(45, None)  # its cuts state no marks
    DeltaTable(place.folder).update({"id": "id + 1"})  # as it does to fill a column; killed before the MERGE
    assert place.held() == Held(Lsn(45), is_in_cut=True)
    place.window(50)
    assert place.held() == Held(Lsn(50), is_in_cut=False)
    place.cut(60, 50)
    assert place.held() == Held(Lsn(60), is_in_cut=True)
    DeltaTable(place.folder).update({"id": "id + 1"})
    with pytest.raises(TableError, match=r"version 5 \(UPDATE\)"):
        place.held()


@pytest.mark.parametrize("operation", ["RESTORE", "WRITE", "DELETE"])
def test_unsigned_foreign_commits_stop_table_after_last_cut(place: Place, operation: str) -> None:
    """No earlier release makes such commits."""
    place.cut(45, None)
    DeltaTable(place.folder).update({"id": "id + 1"})
    if operation == "RESTORE":
        DeltaTable(place.folder).restore(0)
    elif operation == "WRITE":
        write_deltalake(place.folder, ROWS, mode="append")
    else:
        DeltaTable(place.folder).delete("id = 3")
    place.window(50)
    with pytest.raises(TableError, match=rf"version 4 \({operation}\)"):
        place.held()
    write_deltalake(
        place.folder, ROWS, mode="overwrite"
    )  # as it does to rebuild at an LSN that the table has
    assert place.held() == Held(Lsn(50), is_in_cut=False)


def test_foreign_commits_after_first_poll_are_detected(place: Place) -> None:
    """The table was written by an earlier release."""
    place.cut(45, None)
    log = SilverLog(place.lake)
    stored = log.read("t")
    assert stored is not None
    position = Position(place.control, log)
    position.held(place.table, stored, place.control.latest_cut("silver"), None)
    DeltaTable(place.folder).update({"id": "id + 1"})
    after = log.read("t")
    assert after is not None
    with pytest.raises(TableError, match=r"version 3 \(UPDATE\)"):
        position.require_own(place.table, after)


def stated(operation: str, **parameters: str) -> bytes:
    """Return Spark's log entry of a commit that changed rows, unsigned."""
    info = {"operation": operation, "operationParameters": parameters}
    lines = [{"commitInfo": info}, {"add": {"path": "a", "dataChange": True}}]
    return "\n".join(json.dumps(line, separators=(",", ":")) for line in lines).encode()


@pytest.mark.parametrize(
    ("entry", "own"),
    [
        (stated("UPDATE", predicate="[]"), True),
        (stated("UPDATE"), True),
        (stated("UPDATE", predicate='["isnull(_deleted#7)"]'), True),
        (stated("UPDATE", predicate='["NOT coalesce(_deleted#7, false)"]'), True),
        (stated("UPDATE", predicate='["isnull(_valid_to_lsn#70L)"]'), True),
        (stated("DELETE", predicate='["_deleted#7: boolean"]'), True),
        (stated("WRITE", mode="Overwrite", partitionBy="[]"), True),
        (stated("UPDATE", predicate='["(id#7 = 3)"]'), False),
        (stated("UPDATE", predicate='["((id#7 = 3) AND isnull(_valid_to_lsn#70L))"]'), False),
        (stated("DELETE", predicate='["(id#7 = 3)"]'), False),
        (stated("DELETE", predicate='["NOT _deleted#7"]'), False),
        (stated("DELETE", predicate="[]"), False),
        (stated("WRITE", mode="Overwrite", predicate='["(id#7 = 3)"]'), False),
        (stated("WRITE", mode="Append", partitionBy="[]"), False),
        (stated("MERGE", predicate='["(id#7 = id#8)"]'), False),
        (stated("RESTORE", version="0"), False),
        (stated("CREATE OR REPLACE TABLE AS SELECT"), False),
        (stated("DROP COLUMNS", columns='["a"]'), False),
    ],
)
def test_which_commits_an_earlier_release_left_unsigned(entry: bytes, own: bool) -> None:  # noqa: FBT001
    assert may_be_own(commit_of(entry)) is own


def test_newer_snapshot_suffices_if_rebuild_is_refused(
    lake_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A history table needs no more than a table without history."""
    place = Place(lake_path)
    shutil.rmtree(place.folder)
    former = pa.schema([ID, pa.field("gone", pa.int32(), metadata={"comment": "attribute 9"})])
    mark = CommitProperties(app_transactions=[Transaction(SILVER_APP, 50)])
    write_deltalake(place.folder, former.empty_table(), commit_properties=mark)
    place.cut(60, 50)
    history = replace(place.table, history=True)
    assert place.held(45, history).lsn == Lsn(60)
    write_deltalake(place.folder, pa.table({"id": [9], "gone": [1]}, schema=former), mode="append")
    with pytest.raises(TableError) as caught:
        place.held(45, history)
    assert str(caught.value.remedy).endswith("smelt snapshot FILE public.t")
    assert not caplog.messages
    assert place.held(70, history).lsn == Lsn(60), "as the remedy says"
    assert "has the column gone from before the newest snapshot" in caplog.messages[-1]
    mark = CommitProperties(app_transactions=[Transaction(SILVER_APP, 75)])
    write_deltalake(place.folder, former.empty_table(), mode="append", commit_properties=mark)
    # the snapshot's window; killed before the cut
    assert place.held(70, history) == Held(Lsn(75), is_in_cut=False)
    DeltaTable(place.folder).delete("id = 9")
    with pytest.raises(TableError, match=r"version 1 \(WRITE\)"):
        place.held(70, history)


def drop(folder: Path, column: str) -> None:
    """Write Spark's log entry of ALTER TABLE … DROP COLUMN."""
    log, version = folder / "_delta_log", DeltaTable(folder).version()
    entries = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    metadata = next(entry["metaData"] for entry in entries if "metaData" in entry)
    schema = json.loads(metadata["schemaString"])
    remaining = [field for field in schema["fields"] if field["name"] != column]
    info = {"operation": "DROP COLUMNS", "operationParameters": {"columns": json.dumps([column])}}
    metadata["schemaString"] = json.dumps({**schema, "fields": remaining})
    lines = [json.dumps({"commitInfo": info}), json.dumps({"metaData": metadata})]
    (log / f"{version + 1:020}.json").write_text("\n".join(lines))


def test_foreign_column_may_be_dropped_by_remedy(lake_path: str) -> None:
    place = Place(lake_path)
    shutil.rmtree(place.folder)
    own_schema = pa.schema([ID, ("mine", pa.int32())])
    mark = CommitProperties(app_transactions=[Transaction(SILVER_APP, 10)])
    write_deltalake(place.folder, own_schema.empty_table(), commit_properties=mark)
    place.cut(60, 10)
    drop(place.folder, "mine")
    assert place.held().lsn == Lsn(60)
    drop(place.folder, "id")
    with pytest.raises(TableError, match=r"version 2 \(DROP COLUMNS\)"):
        place.held()


def test_foreign_commits_during_cycle_are_detected_before_cut(place: Place) -> None:
    log = SilverLog(place.lake)
    stored = log.read("t")
    assert stored is not None
    position = Position(place.control, log)
    position.held(place.table, stored, place.control.latest_cut("silver"), None)
    write_deltalake(place.folder, ROWS, mode="append")
    place.window(50)
    after = log.read("t")
    assert after is not None
    with pytest.raises(TableError):
        position.require_own(place.table, after)
    log.forget(["t"])
    assert log.read("t") == after
    with pytest.raises(TableError, match="version 3"):
        position.require_own(place.table, after)


def test_versions_named_by_cut_are_not_checked_again(place: Place) -> None:
    DeltaTable(place.folder).restore(0)
    place.cut(50, 30)
    log = SilverLog(place.lake)
    stored = log.read("t")
    assert stored is not None
    position = Position(place.control, log)
    position.held(place.table, stored, place.control.latest_cut("silver"), None)
    log.forget(["t"])
    assert log.read("t") == stored
    position.require_own(place.table, stored)


def test_removed_table_leaves_every_cut(place: Place) -> None:
    shutil.rmtree(place.folder)
    log = SilverLog(place.lake)
    looks = Position(place.control, log, corrects=False)
    looks.begin_anew("t", log.read("t"), place.control.latest_cut("silver"))
    assert place.named()[40] == 2
    position = Position(place.control, log)
    position.begin_anew("t", log.read("t"), place.control.latest_cut("silver"))
    assert position.disowned
    assert set(place.named().values()) == {None}
