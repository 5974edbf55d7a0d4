"""Control tables do not grow without bound: old cuts are thinned, and runs expire."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from deltasmelt.bronze.lake.control import Cut, OpenError, Run
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake, Layer
from deltasmelt.bronze.lsn import Lsn

NOW = datetime(2026, 11, 21, 12, 30, 20, tzinfo=UTC)


def record(control: ControlTables, layer: Layer, lsn: int, ago: timedelta, **tables: int) -> None:
    control.record_cut(Cut(layer, Lsn(lsn), None, tables, NOW - ago))


def lsns(control: ControlTables, layer: Layer) -> list[int]:
    return [int(cut.commit_lsn) for cut in control.cuts(layer)]


def test_cuts_grow_rarer_with_their_age(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    assert control.thin_cuts(NOW, gold=False) == 0, "there is none"
    ages = {
        10: timedelta(days=3, minutes=5),
        20: timedelta(days=3, seconds=30),
        30: timedelta(days=3),  # 12:30:20, in one hour with the two before
        40: timedelta(days=2, minutes=31),  # 11:59:20
        50: timedelta(hours=5, seconds=10),
        60: timedelta(hours=5, seconds=5),
        70: timedelta(hours=5, seconds=-50),  # 07:31:10, the next minute
        80: timedelta(minutes=60, seconds=15),  # 11:30:05, a minute that is not over an hour ago yet
        90: timedelta(minutes=60, seconds=10),
        100: timedelta(minutes=1),
        110: timedelta(),
    }
    for lsn, ago in ages.items():
        record(control, "silver", lsn, ago, a=lsn, b=1)
    assert control.thin_cuts(NOW, gold=False) == 3 * 2, "rows of two tables"
    remaining = [30, 40, 60, 70, 80, 90, 100, 110]
    assert lsns(control, "silver") == remaining
    assert control.thin_cuts(NOW, gold=False) == 0
    assert control.thin_cuts(NOW + timedelta(minutes=2), gold=False) == 2
    assert lsns(control, "silver") == [30, 40, 60, 70, 90, 100, 110]
    control.thin_cuts(NOW + timedelta(days=9), gold=False)
    assert lsns(control, "silver") == [30, 40, 70, 90, 110], "one an hour"
    assert ControlTables(Lake(lake_path)).latest_cut("silver", at=Lsn(69)) is not None
    assert control.oldest_version("silver", "a") == 30


def test_newest_cut_survives_later_record_of_same_minute(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    record(control, "silver", 20, timedelta(days=2, seconds=2), a=2)
    record(control, "silver", 10, timedelta(days=2, seconds=1), a=1)
    assert control.thin_cuts(NOW, gold=False) == 0
    assert lsns(control, "silver") == [10, 20]


def test_thinning_spares_cuts_needed_by_gold(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    for second in range(10):
        record(control, "silver", 10 + second, timedelta(hours=2, seconds=-second), a=second)
    assert control.thin_cuts(NOW, gold=True) == 0, "its first build may have begun from any"
    record(control, "gold", 12, timedelta(hours=2, seconds=-3), d=1)
    record(control, "gold", 13, timedelta(hours=2, seconds=-4), d=1)
    record(control, "gold", 15, timedelta(hours=2, seconds=-6), d=2)
    record(control, "silver", 15, timedelta(hours=1, minutes=50), a=95)  # recorded again
    assert control.thin_cuts(NOW, gold=True, positions=[Lsn(11), Lsn(99)]) == 2 + 4
    assert lsns(control, "gold") == [15]
    assert lsns(control, "silver") == [11, 15, 16, 17, 18, 19]
    cut = control.latest_cut("silver", at=Lsn(15), known_by=NOW - timedelta(hours=2, seconds=-5))
    assert cut is not None, "what gold read is there beside what was recorded again"
    assert cut.tables == {"a": 5}
    assert control.thin_cuts(NOW, gold=False, positions=[]) == 4
    assert lsns(control, "silver") == [15, 19], "the moment of gold's cut, and the newest"


def run(name: str, ago: timedelta, mode: str = "incremental") -> Run:
    return Run("silver", name, mode, None, Lsn(1), started_at=NOW - ago)


def test_runs_expire_except_newest_and_recent_unusual_runs(
    lake_path: str,
) -> None:
    """The newest run of each table stays, and runs other than ordinary cycles stay for a while."""
    control = ControlTables(Lake(lake_path))
    before = NOW - timedelta(days=7)
    assert control.expire_runs(NOW, before) == 0
    runs = {
        "busy, old": run("busy", timedelta(days=2)),
        "busy, full": run("busy", timedelta(days=3), "full"),
        "busy, full, past": run("busy", timedelta(days=8), "full"),
        "busy": run("busy", timedelta(hours=23)),
        "idle, old": run("idle", timedelta(days=10)),
        "idle": run("idle", timedelta(days=9)),
        "dropped": run("dropped", timedelta(days=9)),
        "dropped, full": run("dropped", timedelta(days=6), "full"),
        "document": replace(run("document", timedelta(days=20)), layer="gold"),
    }
    control.record_cut(Cut("silver", Lsn(1), None, {"busy": 1, "idle": 1}, NOW))
    control.record_runs([runs[name] for name in list(runs)[:3]])
    control.record_runs([runs[name] for name in list(runs)[3:]])
    assert control.expire_runs(NOW, before) == 4
    remaining = ("busy", "busy, full", "dropped, full", "idle", "document")
    assert control.runs() == [runs[name] for name in remaining], "no cut names a table that was dropped"
    assert control.expire_runs(NOW, NOW) == 2, "a table a day leaves nothing"
    assert control.runs(limit=1) == [runs["busy"]]
    assert control.expire_runs(NOW, NOW) == 0


def test_closed_errors_expire_and_open_errors_stay(lake_path: str) -> None:
    control = ControlTables(Lake(lake_path))
    assert control.expire_errors(NOW) == 0
    names = ("past", "closed", "open")
    control.record_errors([OpenError("table", name, "no-key", "none", opened_at=NOW) for name in names])
    control.close_errors("table", "past")
    between = datetime.now(UTC)
    control.close_errors("table", "closed")
    assert control.expire_errors(between) == 1
    assert sorted(control._errors.rows()["name"].to_pylist()) == ["closed", "open"]
    assert control.expire_errors(between) == 0
    assert [error.name for error in ControlTables(Lake(lake_path)).open_errors()] == ["open"]


def test_dense_cuts_of_earlier_release_thin_to_minutes(
    lake_path: str,
) -> None:
    """A day of dense cuts from an earlier release shrinks to one cut a minute."""
    tables = 40
    control = ControlTables(Lake(lake_path))
    names = {f"t{number}": number for number in range(tables)}
    rows = []
    for number in range(4 * 1440):  # one each 15 seconds
        recorded = NOW - timedelta(days=1) + timedelta(seconds=15 * number)
        rows += [
            {
                "commit_lsn": number, "commit_ts": recorded, "layer": "silver", "table_name": name,
                "delta_version": version, "recorded_at": recorded,
            }
            for name, version in names.items()
        ]  # fmt: skip
    control._cuts.append(rows)
    removed = control.thin_cuts(NOW, gold=False)
    assert removed == (4 * 23 * 60 - 23 * 60 - 1) * tables, (
        "one of each minute that is over, the first begun late"
    )
    cuts = control.cuts("silver")
    assert len(cuts) == 4 * 24 * 60 - removed // tables
    assert all(cut.tables == names for cut in cuts)
