from __future__ import annotations

import ast
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from deltasmelt.bronze.figures import (
    bytes_text,
    counted,
    estimate_text,
    moment_text,
    seconds_text,
    setting_text,
    timing_text,
)

ROOT = Path(__file__).parents[2]


def test_sizes_and_durations_are_readable_with_unknowns_marked() -> None:
    assert [bytes_text(size) for size in (None, 0, 999, 1500, 2_500_000_000)] == [
        "?", "0 B", "999 B", "1.5 kB", "2.5 GB",
    ]  # fmt: skip
    assert [seconds_text(age) for age in (None, 0.04, 59.97, 61, 7260, 200_000)] == [
        "?", "0.0 s", "1 min 0 s", "1 min 1 s", "2 h 1 min", "2 d 7 h",
    ]  # fmt: skip
    assert [estimate_text(left) for left in (0, 16.4, 600, 9000, 6462000)] == [
        "0 s",
        "16 s",
        "10 min",
        "2 h",
        "75 d",
    ]


def test_limits_are_as_their_setting_is_written() -> None:
    sizes = (0, 1 << 19, 100 << 20, 50 << 30, 1536 << 20, 2 << 40)
    assert [setting_text(size) for size in sizes] == ["0 MB", "0.5 MB", "100 MB", "50 GB", "1.5 GB", "2 TB"]
    assert [setting_text(size << 20) for size in (10_000, 51_300, 100_000_000)] == [
        "10,000 MB", "51,300 MB", "100,000,000 MB",
    ]  # fmt: skip
    measured = (40_000, (1 << 34) + 5)
    assert [setting_text(size) for size in measured] == ["less than 0.1 MB", "16 GB"]


def test_statements_show_milliseconds() -> None:
    assert [timing_text(seconds) for seconds in (0.0412, 0.9996, 2.35)] == ["41 ms", "1.0 s", "2.4 s"]


def test_counts_agree_with_their_nouns() -> None:
    assert [counted(1, "change"), counted(0, "row"), counted(12345, "change")] == [
        "1 change", "0 rows", "12,345 changes",
    ]  # fmt: skip
    assert [counted(1, "log entry"), counted(2, "log entry"), counted(2, "key")] == [
        "1 log entry", "2 log entries", "2 keys",
    ]  # fmt: skip


def test_moments_are_in_utc_without_fractions() -> None:
    moment = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
    assert moment_text(moment) == "2026-01-31 12:00:00 UTC"
    assert moment_text(moment.astimezone(timezone(timedelta(hours=2)))) == "2026-01-31 12:00:00 UTC"


def test_moments_without_zone_or_outside_utc_are_shown() -> None:
    assert moment_text(datetime(2026, 1, 31, 12)) == "2026-01-31 12:00:00 UTC"  # noqa: DTZ001
    east = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert moment_text(east) == "0001-01-01 00:00:00+02:00"


def test_no_other_module_formats_times() -> None:
    """A format of seconds or of a date in a text is a second form of what `figures` knows."""
    others = []
    for package in ("bronze", "silver", "gold", "pipelines", "deltasmelt"):
        for path in (ROOT / package).rglob("*.py"):
            if path == ROOT / "bronze" / "figures.py":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    others += [f"{path.relative_to(ROOT)}:{node.lineno}" for text in _formats(node) if text]
    assert others == []


def _formats(text: ast.JoinedStr) -> list[bool]:
    """Return for each value of the text whether it is a time in a form of its own."""
    found = []
    for value, after in zip(text.values, [*text.values[1:], None], strict=True):
        if not isinstance(value, ast.FormattedValue) or not isinstance(value.format_spec, ast.JoinedStr):
            continue
        form = "".join(str(part.value) for part in value.format_spec.values if isinstance(part, ast.Constant))
        unit = after.value if isinstance(after, ast.Constant) else ""
        is_seconds = form.endswith("f") and str(unit).startswith((" s", " MB", " GB", " kB"))
        found.append(is_seconds or "%Y" in form)
    return found
