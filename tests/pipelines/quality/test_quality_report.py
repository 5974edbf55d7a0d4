"""The report: self-contained, equal to the result, and safe against hostile data."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.quality.expectations import CutTable, Expectation, LeftOut, QualityResult, Result
from deltasmelt.pipelines.quality.report import render, sparkline, write_report
from deltasmelt.pipelines.quality.results import History, PastRun, Point, identity

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 11, 21, 14, 0, tzinfo=UTC)
NOTHING = History((), {})


def about(
    kind: str, table: str = "orders", suite: str = "orders", where: str = "orders.yml:3", **kwargs: Any
) -> Expectation:
    return Expectation("silver", table, suite, kind, kwargs, where=where)


HOLDS = Result(about("expect_column_values_to_not_be_null", column="id"), True, 10, 0, 0.0)
FAILS = Result(
    about("expect_column_values_to_be_between", column="total", min_value=0),
    False,
    1234,
    7,
    0.567,
    None,
    ("-3",),
)
ERROR = Result(about("expect_column_values_to_be_unique", column="idd"), None, error="no column 'idd'")


def result(*rows: Result, **changes: Any) -> QualityResult:
    quality_result = QualityResult(
        "shop", "abc", NOW, 12.3, Lsn.parse("0/1A2B"), NOW, (CutTable("silver", "orders", 3, 1234),), rows,
        details={"great_expectations": "1.24.1"},
    )  # fmt: skip
    return dataclasses.replace(quality_result, **changes)


class Tags(HTMLParser):
    """A parser that records names and attributes of all elements, and unclosed elements."""

    VOID = frozenset({"meta", "link", "circle", "path", "rect", "polyline"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html.split("<body>")[1]))


@pytest.mark.parametrize("rows", [(HOLDS,), (HOLDS, FAILS, ERROR), (ERROR,), ()])
def test_the_markup_is_whole_and_loads_nothing(rows: tuple[Result, ...]) -> None:
    html = render(result(*rows), NOTHING)
    tags = Tags(html)
    assert tags.open == []
    for tag, attributes in tags.seen:
        assert tag not in {"script", "iframe", "img", "object"}
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#"))
    assert "url(" not in html
    assert "@import" not in html
    assert "default-src 'none'" in html


def test_the_head_line_gives_the_verdict() -> None:
    assert "The one expectation holds" in text_of(render(result(HOLDS), NOTHING))
    assert "All 2 expectations hold" in text_of(render(result(HOLDS, HOLDS), NOTHING))
    failed = text_of(render(result(HOLDS, FAILS, ERROR), NOTHING))
    assert "1 of 3 expectations failed" in failed
    assert "1 more could not be checked" in failed
    assert "1 error in the suites" in text_of(render(result(HOLDS, ERROR), NOTHING))
    assert "1 error in the suites" in text_of(
        render(result(HOLDS, file_errors=("a.yml:1: not YAML",)), NOTHING)
    )


def test_failure_shows_expectation_count_examples_and_line() -> None:
    text = text_of(render(result(HOLDS, FAILS), NOTHING))
    assert "total is at least 0" in text
    assert "7 of 1,234 rows violate the expectation (0.57 %)" in text
    assert "for example-3" in text.replace(" -", "-")
    assert "orders.yml:3" in text


def test_markup_in_value_stays_text() -> None:
    evil = "<script>alert('x')</script>"
    spoiled = dataclasses.replace(FAILS, samples=(evil,))
    misnamed = Result(about(evil, column=evil, where=evil, suite=evil, table=evil), None, error=evil)
    html = render(
        result(spoiled, misnamed, left_out=(LeftOut(evil, evil),), file_errors=(evil,), pipeline=evil),
        NOTHING,
    )
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_an_expectation_with_wrong_arguments_is_still_shown() -> None:
    lost = Result(about("expect_foreign_key_to_hold", mostly="most"), None, error="columns: Field required")
    assert "columns: Field required" in text_of(render(result(lost), NOTHING))


def test_history_draws_labelled_bar_per_run() -> None:
    runs = [PastRun(str(day), NOW + timedelta(days=day), 90, day, 0) for day in range(3)]
    html = render(result(HOLDS), History(tuple(runs), {}))
    assert html.count("<title>2026-11-2") == 3
    assert "2026-11-23 14:00:00 UTC: 90 held, 2 failed, 0 not checked" in html
    assert "Last 3 runs" in html
    warned = render(result(HOLDS), History((PastRun("a", NOW, 2, 0, 1, 1),), {}))
    assert "2 held, 0 failed, 1 warned, 1 not checked" in warned
    (height,) = re.findall(r'class="error" width="8" y="[\d.]+" height="([\d.]+)"', warned)
    assert float(height) == 24.0  # half of what was checked is in order


def test_trend_is_drawn_and_labelled_at_expectation() -> None:
    points = [
        Point(str(day), NOW + timedelta(days=day), day != 1, value)
        for day, value in enumerate((100.0, 90.0, None, 95.0))
    ]
    html = render(result(HOLDS, FAILS), History((), {identity(HOLDS.expectation): tuple(points)}))
    assert html.count('aria-label="succeeded in 3 of the last 4 runs; between 90 and 100, last 95"') == 1
    assert '<polyline points="4.0,4.0 41.3,20.0"/>' in html
    assert '<circle class="failed" cx="41.3" cy="20.0" r="2.6"/>' in html
    assert '<circle class="passed" cx="116.0" cy="12.0" r="2.6"/>' in html
    assert Tags(html).open == []


def test_single_run_has_no_trend_unlike_constant_runs() -> None:
    """A value without any change is a level line."""
    assert sparkline([Point("a", NOW, True, 1.0)]) is None
    level = sparkline([Point("a", NOW, True, 1.0), Point("b", NOW, True, 1.0)])
    assert level is not None
    assert (level.lines, level.label) == (("4.0,12.0 116.0,12.0",), "succeeded in 2 of the last 2 runs")
    unchecked = sparkline([Point("a", NOW, None, None), Point("b", NOW, None, None)])
    assert unchecked is not None
    assert (unchecked.lines, [dot.status for dot in unchecked.dots]) == ((), ["error", "error"])


def test_failing_rows_show_key_first_and_warnings_pass() -> None:
    """Warnings alone are no failure."""
    mild = dataclasses.replace(FAILS.expectation, severity="warning")
    rows: tuple[dict[str, str | None], ...] = (
        {"id": "7", "total": "-3", "note": None},
        {"id": "8", "total": "<b>", "note": "***"},
    )
    html = render(result(HOLDS, dataclasses.replace(FAILS, expectation=mild, failing_rows=rows)), NOTHING)
    assert "No error, 1 warning" in text_of(html)
    assert '<th scope="col">id</th><th scope="col">total</th>' in html
    assert "<td>8</td><td>&lt;b&gt;</td><td>***</td>" in html
    assert "<i>NULL</i>" in html
    assert Tags(html).open == []


def test_single_failure_among_thousands_stays_visible_in_history() -> None:
    html = render(result(HOLDS), History((PastRun("a", NOW, 99_999, 1, 0),), {}))
    heights = [
        float(height) for height in re.findall(r'class="failed" width="8" y="[\d.]+" height="([\d.]+)"', html)
    ]
    assert heights == [4.0]


def test_only_failed_tables_are_unfolded() -> None:
    fine = Result(about("expect_column_values_to_not_be_null", table="tags", column="id"), True, 10, 0, 0.0)
    tables = (CutTable("silver", "orders", 3), CutTable("silver", "tags", 1))
    html = render(result(fine, FAILS, tables=tables), NOTHING)
    assert html.count("<details") == 2
    assert html.count('<details class="card" open>') == 1


def test_report_replaces_predecessor_atomically_and_creates_folder(tmp_path: Path) -> None:
    path = tmp_path / "a" / "report.html"
    write_report(result(HOLDS), NOTHING, path)
    write_report(result(FAILS), NOTHING, path)
    assert "1 of 1 expectation failed" in text_of(path.read_text(encoding="utf-8"))
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
