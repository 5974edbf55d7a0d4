"""The moment at which silver and gold are shown together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from deltasmelt.bronze.lake.consistent_cut import ConsistentCut, choose_cut
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake, Layer
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.quality.cut import quality_cut
from deltasmelt.pipelines.quality.expectations import LeftOut

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def record(lake_path: str, **lsns: tuple[int, ...]) -> ControlTables:
    """Record cuts at these LSNs, one hour of commit time per 100; a table's version equals its LSN."""
    control = ControlTables(Lake(path=lake_path))
    layers: tuple[Layer, ...] = ("silver", "gold")
    for layer in layers:
        for lsn in lsns.get(layer, ()):
            control.record_cut(Cut(layer, Lsn(lsn), BEGIN + timedelta(hours=lsn / 100), {layer[0]: lsn}))
    return control


def chosen(
    control: ControlTables, *, with_gold: bool = True, at: Lsn | datetime | None = None
) -> ConsistentCut:
    cut = choose_cut(control, with_gold=with_gold, at=at)
    assert cut is not None
    return cut


def test_silver_alone_shows_newest_cut(lake_path: str) -> None:
    """Without gold, silver is shown at its newest cut."""
    control = record(lake_path, silver=(100, 200, 300), gold=(100, 200))
    assert chosen(control, with_gold=False).versions == {("silver", "s"): 300}


def test_silver_and_gold_show_newest_gold_lsn(lake_path: str) -> None:
    """Both layers are shown at gold's newest LSN if silver has a cut at the LSN."""
    control = record(lake_path, silver=(100, 200, 300), gold=(100, 200))
    assert chosen(control).versions == {("silver", "s"): 200, ("gold", "g"): 200}


def test_older_common_cut_replaces_missing_silver_record(
    lake_path: str,
) -> None:
    """If silver's record at gold's newest LSN has expired, an older common cut is shown."""
    control = record(lake_path, silver=(50, 100, 150, 300), gold=(20, 100, 200, 250))
    cut = chosen(control)
    assert cut.commit_lsn == 100
    assert cut.versions == {("silver", "s"): 100, ("gold", "g"): 100}


@pytest.mark.parametrize("golds", [(), (90, 200), (40,)])
def test_gold_without_common_lsn_is_omitted(lake_path: str, golds: tuple[int, ...]) -> None:
    control = record(lake_path, silver=(50, 100, 300), gold=golds)
    cut = chosen(control)
    assert cut.gold is None
    assert cut.versions == {("silver", "s"): 300}


@pytest.mark.parametrize("at", [Lsn(299), BEGIN + timedelta(hours=2.5)])
def test_common_cut_is_selected_by_moment(lake_path: str, at: Lsn | datetime) -> None:
    """A common cut is found at or before a moment."""
    control = record(lake_path, silver=(100, 150, 300), gold=(100, 200, 300))
    assert chosen(control, at=at).versions == {("silver", "s"): 100, ("gold", "g"): 100}


def test_a_moment_before_silvers_first_cut_has_none(lake_path: str) -> None:
    control = record(lake_path, silver=(100,), gold=(100,))
    assert choose_cut(control, with_gold=True, at=Lsn(99)) is None


@pytest.mark.parametrize(
    ("golds", "why"), [((), "no cut yet"), ((90,), "no cut at an LSN of silver"), ((100,), None)]
)
def test_quality_says_why_gold_is_left_out(lake_path: str, golds: tuple[int, ...], why: str | None) -> None:
    control = record(lake_path, silver=(100, 300), gold=golds)
    cut = quality_cut(Lake(path=lake_path), control, with_gold=True, where="pipeline.yml")
    assert cut.left_out == (() if why is None else (LeftOut("gold", why),))
    assert [table.qualified for table in cut.tables] == (["silver.s"] if why else ["silver.s", "gold.g"])
