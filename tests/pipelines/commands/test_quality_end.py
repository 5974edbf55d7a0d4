"""The end of `smelt quality`: unchecked expectations are no success."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.commands.quality import failure_of
from deltasmelt.pipelines.quality.expectations import Expectation, LeftOut, QualityResult, Result

STOPPED = LeftOut("table public.orders", "stopped: no key", stopped=True)
OTHER = LeftOut("foreign keys", "the source could not be asked")


def result(*held: bool | None, left_out: tuple[LeftOut, ...] = ()) -> QualityResult:
    expectation = Expectation("silver", "orders", "orders", "expect_column_to_exist", {"column": "id"})
    rows = tuple(Result(expectation, success) for success in held)
    now = datetime(2026, 11, 26, tzinfo=UTC)
    return QualityResult("shop", "run", now, 1.0, Lsn(1), now, (), rows, left_out=left_out)


@pytest.mark.parametrize(
    ("found", "code", "message"),
    [
        (result(True), None, ""),
        (result(True, left_out=(OTHER,)), None, ""),
        (result(), 1, "no expectation was checked, because none exists"),
        (
            result(True, left_out=(STOPPED,)),
            3,
            ("all 1 expectations hold, but without objects that an error has stopped"),
        ),
        (
            result(left_out=(STOPPED, STOPPED)),  # two errors
            3,
            ("no expectation was checked, because none exists, but without objects"),
        ),
        (result(True, False, left_out=(STOPPED,)), 1, "1 of 2 expectations failed"),
        (result(None, left_out=(STOPPED,)), 1, "1 could not be checked"),
    ],
)
def test_only_checked_and_passed_expectations_are_success(
    found: QualityResult, code: int | None, message: str
) -> None:
    failure = failure_of(found)
    assert (failure and failure.exit_code) == code
    assert message in str(failure)
    if code == 3:
        assert str(failure).count("table public.orders") == 1
    assert found.success == (bool(found.rows) and code != 1)
