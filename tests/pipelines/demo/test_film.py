"""The recording of the demo's film shows the acts, steps and results of the present demo.

Times and counts of a recording belong to its run, so the comparison ignores numbers, paths and the moving
parts of a terminal. After a change of the demo, `make film` records again.
"""

from __future__ import annotations

import ast
import io
import json
import re
from datetime import UTC, datetime
from itertools import takewhile
from typing import TYPE_CHECKING

import psycopg
import pytest
from rich.console import Console

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.demo import show
from deltasmelt.pipelines.demo.live import LiveView, Preparation
from deltasmelt.pipelines.demo.story import LAYERS, Order, Story
from deltasmelt.pipelines.demo.summary import Summary, print_summary
from deltasmelt.pipelines.private import conf_folder
from deltasmelt.pipelines.proof.against_source import Proof
from deltasmelt.pipelines.quality.expectations import Expectation, QualityResult, Result
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.verify.compare import TableComparison
from tests.docs.blocks import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from deltasmelt.pipelines.demo.story import Followed

CAST = ROOT / "docs" / "film" / "demo.cast"
WIDTH = 100
RESULTS = ("8 tables, 18,989 rows", "18,989 rows", "", "8 tables", "6,000 documents")
_LINE = re.compile(r"\x1b\[(\d+);1H\x1b\[0m\x1b\[2K(.*?)(?=\x1b\[\d+;1H\x1b\[0m\x1b\[2K|\Z)", re.DOTALL)
_WORDS = re.compile(r"\x1b\[\d+;(\d+)H\x1b\[0;[\d;]*m([^\x1b]*)")


class Terminal(Output):
    """A terminal of the recording's width that keeps its text."""

    def __init__(self) -> None:
        super().__init__(
            _data=Console(file=io.StringIO(), width=WIDTH, force_terminal=True, color_system=None)
        )

    @property
    def rich(self) -> bool:
        return True

    def lines(self) -> list[str]:
        file = self.console.file
        assert isinstance(file, io.StringIO)
        return re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", file.getvalue()).splitlines()


def pictures(cast: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each line that the recording shows, with all lines of the terminal at that moment."""
    rows: dict[int, str] = {}
    for event in cast.splitlines()[1:]:
        for row, content in _LINE.findall(json.loads(event)[2]):
            text = ""
            for column, words in _WORDS.findall(content):
                text = text.ljust(int(column) - 1) + words
            rows[int(row)] = text
            yield text, [rows.get(number, "") for number in range(1, max(rows) + 1)]


def recorded(cast: str) -> str:
    """Return every line that the recording shows, and its last picture as if no line were wrapped."""
    shown = list(pictures(cast))
    last = "".join(line.ljust(WIDTH) for line in shown[-1][1])
    return "\n".join(map(comparable, [*(line for line, _ in shown), last]))


def comparable(text: str) -> str:
    """Return a text without what differs between two runs."""
    text = re.sub(r"[\u2500-\u257f\u2800-\u28ff]+", " ", text)
    text = re.sub(r"(?<![\w/])/\S+", "PATH", text)
    text = re.sub(r"(\d+ min )?\d+(\.\d+)? s\b", "TIME", text)
    text = re.sub(r"\d[\d.,]* (B|kB|MB)\b", "SIZE", text)
    return " ".join(re.sub(r"\d[\d.,:/A-F]*", "N", text).split())


def played(shop: psycopg.Connection[tuple[object, ...]]) -> list[Followed]:
    """Return the followed changes of both acts, as if each had arrived everywhere."""
    story = Story(shop)
    story.first_act()
    story.second_act(lambda: None)
    for layer in LAYERS:
        story.reached(layer, Lsn(story.followed[-1].position + 1))
    for change in story.followed:
        change.arrived = True
    return story.followed


def live_lines(followed: Sequence[Followed]) -> Iterator[str]:
    """Yield the lines of the live view: after each step of the preparation, then in the later phases."""
    preparing, *later = show.PHASES
    steps = Preparation(show.STEPS)
    for step, result in zip(show.STEPS, RESULTS, strict=True):
        if step != show.STEPS[0]:
            yield from viewed(steps, preparing)
        steps.done(step, result)
    for phase in later:
        yield from viewed(steps, phase, followed)


def viewed(steps: Preparation, phase: str, followed: Sequence[Followed] = ()) -> list[str]:
    terminal = Terminal()
    view = LiveView(terminal, steps)
    view.phase, view.followed = phase.format(rate=20.0), followed
    if followed:
        view.crash = show.killed(followed[-1].seconds["bronze"])
        view.heads.note(Lsn(1))
        for layer in LAYERS:
            view.layer(layer).lsn = Lsn(1)
    terminal.console.print(view.rendered())
    return terminal.lines()


def summary_lines(followed: Sequence[Followed], tables: Sequence[str], folder: Path) -> list[str]:
    """Return the lines of a summary in which everything is equal; the rows of the order are elsewhere."""
    compared = [TableComparison(name, f"public.{name}", 1, 1, 1, {}, ()) for name in tables]
    expectation = Expectation("silver", "orders", "suite", "expect", {})
    quality = QualityResult(
        "shop", "1", datetime.now(UTC), 1.0, Lsn(1), None, (), (Result(expectation, success=True),),
        report=folder / "quality.html",
    )  # fmt: skip
    terminal = Terminal()
    print_summary(
        Summary(1, 1, followed, dict.fromkeys(LAYERS, "{}"), Proof(compared=compared), quality),
        load_pipeline(conf_folder() / "demo" / "pipeline.yml"),
        terminal,
        seconds=1.0,
    )
    # The command's name and the file's path depend on where the demo runs.
    return [
        re.sub(r"^.*smelt (sql|explain|verify) \S+ ", "", line) for line in terminal.lines() if line != "{}"
    ]


@pytest.mark.postgres
def test_recording_shows_acts_and_results_of_demo(database: str, tmp_path: Path) -> None:
    film = recorded(CAST.read_text(encoding="utf-8"))
    with psycopg.connect(database, autocommit=True) as shop:
        shop.execute((conf_folder() / "demo" / "shop.sql").read_bytes())
        tables = [row[0] for row in shop.execute("SELECT relname FROM pg_stat_user_tables ORDER BY 1")]
        followed = played(shop)
    lines = [*live_lines(followed), *summary_lines(followed, tables, tmp_path)]
    missing = [line for line in lines if comparable(line) not in film]
    assert missing == [], "the demo prints other lines than its film; make film records again"
    assert len([line for line in lines if line.strip()]) > 60


def test_recorded_order_has_demos_columns_in_every_layer() -> None:
    *_, (_, lines) = pictures(CAST.read_text(encoding="utf-8"))
    titles = {"bronze.changes": "bronze", "silver.orders": "silver", "gold.customer": "gold"}
    rows = {
        layer: json.loads("".join(takewhile(str.strip, lines[number + 1 :])))
        for number, line in enumerate(lines)
        for title, layer in titles.items()
        if line.startswith(f"{title}, ")
    }
    name, product = next(
        filter(None, (re.search("(.+) orders 2 units of (.+):", line) for line in lines))
    ).groups()
    order = Order(rows["silver"]["customer_id"], name, rows["silver"]["id"], product)
    for layer in LAYERS:
        assert order.is_in(layer, rows[layer]), layer
        columns = re.sub(r"\([^()]*\)", "", order.queries[layer].split(" FROM ")[0].removeprefix("SELECT "))
        assert list(rows[layer]) == [column.split()[-1] for column in columns.split(", ")], layer


def messages() -> Iterator[re.Pattern[str]]:
    """Yield the texts of the demo's modules, and of those whose progress the demo shows, as patterns."""
    for package in ("demo", "proof", "quality"):
        for file in (ROOT / "pipelines" / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                texts = [str(part.value) if isinstance(part, ast.Constant) else "" for part in parts]
                if sum(map(len, texts)) >= 8:
                    yield re.compile("".join(re.escape(text) or ".+" for text in texts))


def test_every_recorded_phase_is_message_of_demo() -> None:
    shown = {line for line, _ in pictures(CAST.read_text(encoding="utf-8"))}
    phases = {found[1] for line in shown if (found := re.fullmatch(r"\d+:\d\d (.+)", line))}
    known = [*messages(), *(re.compile(re.escape(phase.format(rate=20.0))) for phase in show.PHASES)]
    assert len(phases) > 3
    assert {phase for phase in phases if not any(pattern.fullmatch(phase) for pattern in known)} == set()
