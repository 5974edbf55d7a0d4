"""What arrives in bronze is read once and in order: by entries, by position, in a folder and in a store."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import compaction
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lake.compaction import compact, remove_files
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.parquet import PartWriter
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store import in_order as merging
from deltasmelt.bronze.store.arrivals import Arrivals, Copied, Gap, content_of
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA, MEASURED
from deltasmelt.bronze.store.in_order import in_order
from deltasmelt.bronze.store.marks import gap_app
from deltasmelt.bronze.store.retention import ChangesFile, keep_from
from tests.bronze.written_log import COPIED, LOG, Process, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from deltasmelt.bronze.lake.place import Location

TIME = datetime(2026, 1, 1, tzinfo=UTC)
SENT = [(100, 3), (200, 40), (300, 2), *((lsn, 2) for lsn in range(400, 800, 100))]
PLACES = [(lsn, seq) for lsn, count in SENT for seq in range(count)]


def arrived(arrivals: Arrivals) -> list[Any]:
    """Return the places of rows and the other arrivals, in the order of one poll."""
    found: list[Any] = []
    for arrival in arrivals.poll():
        if isinstance(arrival, pa.RecordBatch):
            found += zip(arrival["commit_lsn"].to_pylist(), arrival["seq"].to_pylist(), strict=True)
        else:
            found.append(arrival)
    return found


def follow(lake: Lake, moment: Lsn | datetime | None = None, **more: Any) -> Arrivals:
    arrivals = Arrivals(lake, "shop", learn=lambda _: None, **more)
    assert arrivals.exists()
    arrivals.begin(moment)
    return arrivals


def file_of(uri: Path, rows: Sequence[tuple[int, int]], *, measured: bool = True) -> ChangesFile:
    plain = [{"commit_lsn": lsn, "seq": seq, "op": "insert"} for lsn, seq in rows]
    writer = PartWriter(str(uri), "stream-x", schema=CHANGES_SCHEMA, measured=MEASURED)
    for at in range(0, len(plain), 7):
        writer.write(pa.Table.from_pylist(plain[at : at + 7], schema=CHANGES_SCHEMA))
    (action,) = writer.finish()
    if not measured:
        return ChangesFile(action.path, action.size, None, None, TIME)
    lsns, seqs = zip(*rows, strict=True)
    ends = min(seqs), max(seqs)
    return ChangesFile(action.path, action.size, Lsn(min(lsns)), Lsn(max(lsns)), TIME, seqs=ends)


def read_from(uri: Path, files: Sequence[ChangesFile], after: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the places of the rows after a place."""
    return [
        place
        for batch in in_order(str(uri), files, ["commit_lsn", "seq"], after=after)
        for place in zip(batch["commit_lsn"].to_pylist(), batch["seq"].to_pylist(), strict=True)
    ]


def test_overlapping_files_are_merged_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "BATCH_ROWS", 5)
    choice = random.Random(7)
    for _ in range(30):
        places = [(lsn, seq) for lsn in range(1, 20) for seq in range(choice.randint(1, 9))]
        shares: list[list[tuple[int, int]]] = [[] for _ in range(choice.randint(1, 5))]
        for at in range(0, len(places), 11):  # runs, as compaction joins them
            shares[choice.randrange(len(shares))] += places[at : at + 11]
        files = [file_of(tmp_path, share, measured=choice.random() < 0.8) for share in shares if share]
        after = choice.choice([merging.BEGINNING, (0, 2**63 - 1), *places])
        batches = list(in_order(str(tmp_path), files, ["commit_lsn", "seq"], after=after))
        read = [
            place
            for batch in batches
            for place in zip(batch["commit_lsn"].to_pylist(), batch["seq"].to_pylist(), strict=True)
        ]
        assert read == [place for place in places if place > after]
        assert all(0 < batch.num_rows <= 5 for batch in batches)


def test_joined_file_is_read_by_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "BATCH_ROWS", 5)
    # as a compaction leaves small commits, a large commit between them, and later commits
    runs = [range(1, 11), range(20, 31), range(11, 20)]
    joined = file_of(tmp_path, [(lsn, seq) for run in runs for lsn in run for seq in range(3)])
    other = file_of(tmp_path, [(lsn, 3) for lsn in range(5, 40)])
    places = sorted(
        [*((lsn, seq) for lsn in range(1, 31) for seq in range(3)), *((n, 3) for n in range(5, 40))]
    )
    for after in [merging.BEGINNING, (0, 2**63 - 1), *places]:
        assert read_from(tmp_path, [other, joined], after) == [place for place in places if place > after]


def test_starts_are_right_after_compactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Process(Server(LOG[:1]), str(tmp_path)).run()
    lake = Lake(str(tmp_path))
    table = open_existing(lake.uri("bronze", "changes"))

    def moment(lsn: int) -> datetime:
        return TIME.replace(year=2027, second=lsn - 1000)

    def add(lsns: range, width: int) -> None:
        writer = PartWriter(table.table_uri, "stream-x", schema=CHANGES_SCHEMA, measured=MEASURED)
        for lsn in lsns:
            value = random.Random(lsn).randbytes(width).hex()
            at = moment(lsn)
            row = {"commit_lsn": lsn, "seq": 0, "op": "insert", "new": [value], "commit_ts": at}
            writer.write(pa.Table.from_pylist([row], schema=CHANGES_SCHEMA))
        table.commit(writer.finish(), CHANGES_SCHEMA, [])

    for lsns, width in [(range(1001, 1011), 1), (range(1011, 1020), 3_000), (range(1020, 1031), 1)]:
        for lsn in lsns if width == 1 else [lsns[0]]:
            add(range(lsn, lsn + 1) if width == 1 else lsns, width)
    monkeypatch.setattr(compaction, "_ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(compaction, "_CLASSES", (20_000,))
    assert compact(table, CHANGES_SCHEMA, many=20, prefix="stream-", measured=MEASURED)
    monkeypatch.setattr(compaction, "_CLASSES", (1_000_000,))
    assert compact(table, CHANGES_SCHEMA, many=2, prefix="stream-", measured=MEASURED)
    add(range(1031, 1033), 1)
    for start in (1001, 1010, 1011, 1015, 1019, 1020, 1025, 1030, 1032):
        for begin in (Lsn(start), moment(start)):
            assert arrived(follow(lake, begin)) == [(lsn, 0) for lsn in range(start, 1033)]


def test_only_files_of_present_place_are_open(tmp_path: Path) -> None:
    # the parts of a large transaction between small commits
    parts = [[(50, seq) for seq in range(at, at + 10)] for at in range(0, 300, 10)]
    shares = [*([(lsn, 0)] for lsn in range(40, 50)), *parts, *([(lsn, 0)] for lsn in range(51, 60))]
    files = [file_of(tmp_path, share) for share in shares]
    opened: list[str] = []

    def note(kind: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if kind is Effect.READ_FILE and where not in opened:
            opened.append(where)
        return effect()

    with guarded(note):
        batches = in_order(str(tmp_path), files, ["commit_lsn", "seq"], after=merging.BEGINNING)
        for number, batch in enumerate(batches, 1):
            assert batch.num_rows in (1, 10)
            assert len(opened) <= number + 1
        assert len(opened) == len(files)
        opened.clear()
        assert read_from(tmp_path, files, (50, 285)) == [
            *parts[28][6:],
            *parts[29],
            *((n, 0) for n in range(51, 60)),
        ]
        assert len(opened) == 2 + 9, "files before the start stay closed"


def test_batches_of_wide_rows_are_small(tmp_path: Path) -> None:
    wide = {"commit_lsn": 1, "op": "insert", "new": [random.Random(1).randbytes(2**20).hex()]}
    writer = PartWriter(str(tmp_path), "stream-x", schema=CHANGES_SCHEMA, measured=MEASURED)
    rows = [{**wide, "seq": number} for number in range(20)]
    writer.write(pa.Table.from_pylist(rows, schema=CHANGES_SCHEMA))
    (action,) = writer.finish()
    file = ChangesFile(action.path, action.size, Lsn(1), Lsn(1), TIME)
    batches = in_order(str(tmp_path), [file], ["commit_lsn", "seq", "new"], after=merging.BEGINNING)
    assert [batch.num_rows for batch in batches] == [7, 7, 6]


def test_entry_names_only_files_with_new_rows() -> None:
    entry = (
        b'{"commitInfo":{}}\n'
        b'{"add":{"path":"stream-%C3%A4.parquet","size":5,"modificationTime":0,"dataChange":true,'
        b'"stats":"{\\"numRecords\\":3,\\"minValues\\":{\\"commit_lsn\\":1},\\"maxValues\\":{\\"commit_lsn\\":9}}"}}\n'
        b'{"add":{"path":"stream-b.parquet","size":5,"modificationTime":0,"dataChange":false}}\n'
        b'{"remove":{"path":"stream-c.parquet"}}\n{"txn":{"appId":"a","version":7}}\n'
    )
    (file,), marks = content_of(entry)
    assert (file.path, file.rows, file.first, file.last, marks) == ("stream-ä.parquet", 3, 1, 9, {"a": 7})


@pytest.mark.parametrize("kind", ["folder", "store"])
def test_each_change_arrives_once_in_order(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path: str | Location = str(tmp_path) if kind == "folder" else request.getfixturevalue("place")
    lake = Lake(path)
    assert not Arrivals(lake, "shop", learn=lambda _: None).exists()
    server = Server(LOG[:1])
    Process(server, path).run()
    copied = Copied(COPIED, Lsn(150), 3, TIME)
    now, early, rows = follow(lake), follow(lake, Lsn(0)), follow(lake, Lsn(101), rows_of_copies=True)
    assert arrived(now) == []
    first = arrived(early)
    assert first[:-1] == PLACES[:3]
    assert (first[-1].table, first[-1].lsn, first[-1].rows) == (COPIED, copied.lsn, copied.rows)
    assert sorted(place for place in arrived(rows) if not isinstance(place, Copied)) == [
        (150, 0), (150, 1), (150, 1 << 32), (150, 2 << 32),
    ]  # fmt: skip
    server.log = LOG
    Process(server, path).run()
    expected = [place for place in PLACES if place[0] > 100]
    assert arrived(now) == arrived(early) == expected
    assert arrived(now) == []

    uri = lake.uri("bronze", "changes")
    assert compact(open_existing(uri), CHANGES_SCHEMA, many=2, prefix="stream-", measured=MEASURED)
    assert arrived(now) == arrived(early) == [], "a compaction shows nothing again"
    again = arrived(follow(lake, Lsn(0)))
    assert [place for place in again if not isinstance(place, Copied)] == PLACES
    assert again.index(next(each for each in again if isinstance(each, Copied))) == 3, (
        "in the place of its LSN"
    )
    keep_from(uri, Lsn(300))
    assert arrived(follow(lake, Lsn(300))) == [place for place in PLACES if place[0] >= 300]
    for moment in (Lsn(299), Lsn(0)):
        with pytest.raises(DefiniteError) as refused:
            follow(lake, moment)
        assert refused.value.code == "changes-removed"
        assert refused.value.remedy == "begin later: --from 0/12C"
    with pytest.raises(DefiniteError):
        arrived(follow(lake, TIME.replace(year=1999)))


def remove_entries(lake: Path) -> None:
    """Remove all log entries but the newest."""
    open_existing(Lake(str(lake)).uri("bronze", "changes")).checkpoint()
    for entry in sorted((lake / "bronze" / "changes" / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()


def add_copies(lake: Lake, *lsns: int) -> list[str]:
    """Commit copies of three rows; return their files."""
    table = open_existing(lake.uri("bronze", "changes"))
    writer = PartWriter(table.table_uri, "snapshot-x", schema=CHANGES_SCHEMA, measured=MEASURED)
    actions = []
    for lsn in lsns:
        row = {"commit_lsn": lsn, "op": "snapshot", "table_schema": COPIED.schema, "table_name": COPIED.name}
        rows = [{**row, "seq": seq} for seq in range(3)]
        writer.write(pa.Table.from_pylist(rows, schema=CHANGES_SCHEMA))
        actions += writer.finish()
    table.commit(actions, CHANGES_SCHEMA, [])
    return [action.path for action in actions]


def test_copy_beyond_the_stream_arrives_once(tmp_path: Path) -> None:
    Process(Server(LOG), str(tmp_path)).run()
    lake = Lake(str(tmp_path))
    arrivals = follow(lake, rows_of_copies=True)
    add_copies(lake, 900)
    assert [getattr(each, "lsn", each) for each in arrived(arrivals)] == [(900, 0), (900, 1), (900, 2), 900]
    table = open_existing(lake.uri("bronze", "changes"))
    for version in (1, 2):
        commit_marks(table, [Transaction("other", version)])
    remove_entries(tmp_path)
    assert arrived(arrivals) == []


def test_vanished_copy_takes_no_other_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "BATCH_ROWS", 1)
    Process(Server(LOG), str(tmp_path)).run()
    lake = Lake(str(tmp_path))
    arrivals = follow(lake, rows_of_copies=True)
    gone, _ = add_copies(lake, 900, 910)
    assert len(list(islice(arrivals.poll(), 2))) == 2
    table = open_existing(lake.uri("bronze", "changes"))
    assert remove_files(table, [gone], CHANGES_SCHEMA, properties={})
    (tmp_path / "bronze" / "changes" / gone).unlink()
    assert [getattr(each, "lsn", each) for each in arrived(arrivals)] == [(910, 0), (910, 1), (910, 2), 910]


def test_removed_log_entries_are_read_by_position(tmp_path: Path) -> None:
    server = Server(LOG[:3])
    Process(server, str(tmp_path)).run()
    asleep = follow(Lake(str(tmp_path)))
    assert arrived(asleep) == []
    server.log = LOG
    Process(server, str(tmp_path)).run()
    remove_entries(tmp_path)
    assert arrived(asleep) == [place for place in PLACES if place[0] > 300]
    assert arrived(asleep) == []


def test_failed_read_continues_behind_delivered_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "BATCH_ROWS", 4)
    Process(Server(LOG), str(tmp_path)).run()
    for count in range(1, 14):
        arrivals = follow(Lake(str(tmp_path)), Lsn(0), rows_of_copies=True)
        # The generator ends as if the next read had failed.
        found = list(islice(arrivals.poll(), count))
        places = [
            (row["commit_lsn"], row["seq"])
            for arrival in (*found, *arrivals.poll())
            if isinstance(arrival, pa.RecordBatch)
            for row in arrival.to_pylist()
        ]
        assert sorted(places) == sorted({*PLACES, (150, 0), (150, 1), (150, 1 << 32), (150, 2 << 32)})


def test_open_gap_of_copied_table_arrives(tmp_path: Path) -> None:
    Process(Server(LOG), str(tmp_path)).run()
    lake = Lake(str(tmp_path))
    arrivals = follow(lake)
    others = TableName("public", "others")
    marks = [Transaction(gap_app(table), 750) for table in (COPIED, others)]
    commit_marks(open_existing(lake.uri("bronze", "changes")), marks)
    assert arrived(arrivals) == [Gap(COPIED, Lsn(750))], "a table without a copy lacks nothing yet"
    assert arrived(follow(lake, Lsn(700)))[-1] == Gap(COPIED, Lsn(750))


def test_exchanged_lake_ends_the_reading(tmp_path: Path) -> None:
    Process(Server(LOG), str(tmp_path)).run()
    arrivals = follow(Lake(str(tmp_path)))
    (tmp_path / "bronze").rename(tmp_path / "before")
    with pytest.raises(TransientError):
        arrived(arrivals)
    Process(Server(LOG[:2]), str(tmp_path)).run()
    with pytest.raises(TransientError):
        arrived(arrivals)
