"""The moment that `smelt sql` shows; the choice needs no Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.moments import parse_as_of
from deltasmelt.pipelines.spark.lake_sql import cut_at, may_read_gold

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def control(lake_path: str) -> ControlTables:
    """Record silver cuts at 100, 200, 300; gold lags at 200."""
    control = ControlTables(Lake(path=lake_path))
    for number, lsn in enumerate((100, 200, 300)):
        moment = BEGIN + timedelta(hours=number)
        control.record_cut(Cut("silver", Lsn(lsn), moment, {"a": number, "b": number}))
        if lsn <= 200:
            control.record_cut(Cut("gold", Lsn(lsn), moment, {"d": number}))
    return control


def test_newest_gold_cut_decides_for_silver(control: ControlTables) -> None:
    cut = cut_at(control, with_gold=True, at=None, lake="lake")
    assert cut.commit_lsn == 200
    assert cut.versions == {("silver", "a"): 1, ("silver", "b"): 1, ("gold", "d"): 1}


def test_without_documents_silvers_newest_cut_decides(control: ControlTables) -> None:
    cut = cut_at(control, with_gold=False, at=None, lake="lake")
    assert cut.versions == {("silver", "a"): 2, ("silver", "b"): 2}


@pytest.mark.parametrize("at", [Lsn(199), BEGIN + timedelta(minutes=59)])
def test_as_of_selects_newest_cut_before_moment(control: ControlTables, at: Lsn | datetime) -> None:
    cut = cut_at(control, with_gold=True, at=at, lake="lake")
    assert cut.commit_lsn == 100
    assert set(cut.versions.values()) == {0}


def test_moment_before_first_cut_is_rejected_naming_oldest(control: ControlTables) -> None:
    with pytest.raises(DefiniteError, match="the oldest cut is 0/64"):
        cut_at(control, with_gold=True, at=Lsn(99), lake="lake")


def test_oldest_cut_without_time_shows_none(lake_path: str) -> None:
    control = ControlTables(Lake(path=lake_path))
    control.record_cut(Cut("silver", Lsn(100), None, {"a": 1}))
    with pytest.raises(DefiniteError) as raised:
        cut_at(control, with_gold=False, at=Lsn(99), lake="lake")
    assert raised.value.message.endswith("the oldest cut is 0/64")


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT * FROM silver.a", False),
        ("SELECT max(commit_lsn) FROM bronze.changes", False),
        ("SELECT * FROM silver.golden", False),
        ("SELECT * FROM SILVER.a JOIN `Gold`.d USING (id)", True),
        ("SHOW TABLES IN gold", True),
        ("SHOW SCHEMAS", True),
    ],
)
def test_statement_without_gold_reads_newest_silver(
    statement: str,
    expected: bool,  # noqa: FBT001
) -> None:
    assert may_read_gold(statement) is expected


def test_as_of_accepts_lsns_and_times() -> None:
    """A time without a zone is UTC."""
    assert parse_as_of("0/16B3748") == Lsn(0x16B3748)
    assert parse_as_of("23803720") == Lsn(23803720)
    assert parse_as_of("2026-01-01T12:00:00+02:00") == datetime(2026, 1, 1, 10, tzinfo=UTC)
    assert parse_as_of("2026-01-01 12:00") == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert parse_as_of("2026-01-01 12:00:00 UTC") == datetime(2026, 1, 1, 12, tzinfo=UTC), "from a message"
    with pytest.raises(ConfigurationError):  # before the first year of UTC
        parse_as_of("0001-01-01T00:00:00+02:00")
    with pytest.raises(ConfigurationError):
        parse_as_of("soon")
