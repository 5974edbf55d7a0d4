"""Draw a recorded terminal as an SVG that moves by CSS alone, so that a page can show the film as an image.

`make film` calls `draw.py docs/film/demo.cast docs/demo.svg` after `record.py`. The recording is an
asciicast. The script plays the recording into an emulated terminal, tall enough for the whole output. The
film shows cuts from the terminal. For each cut, `scenes` gives the first and last second of the recording,
the seconds in the film, and the first line. The demo's phases give the seconds of the recording, so any
recording can be drawn. No picture is drawn by hand.

For a reader who prefers reduced motion, the last picture of the live part is shown.
"""

from __future__ import annotations

import html
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyte

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS, ROWS, TALL = 100, 23, 220
CELL, LINE, FONT, MARGIN, BAR = 8.43, 19.0, 14.0, 18.0, 34.0
STEP: Final = 0.6
"""Minimum of seconds between two pictures of the film."""

COLOURS: Final = {
    "default": "#d6dae1", "black": "#6b7380", "red": "#ff7b72", "green": "#6fd08c", "brown": "#e6c07b",
    "blue": "#79b8ff", "magenta": "#d2a8ff", "cyan": "#7ad7e0", "white": "#f0f3f6",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scene:
    """A part of the film.

    Attributes:
        begin: first second of the recording.
        end: last second of the recording; equal to `begin` for a still.
        seconds: length of the scene in the film.
        top: text of the first visible line; empty for the terminal's first line.
    """

    begin: float
    end: float
    seconds: float
    top: str = ""


Run = tuple[int, str, str, bool]
"""Column, text, colour, and whether the text is bold."""

Picture = tuple[tuple[int, tuple[Run, ...]], ...]
"""Rows with any text."""


def events(cast: Path) -> list[tuple[float, str]]:
    """Return the recording's output with its times."""
    lines = cast.read_text(encoding="utf-8").splitlines()[1:]
    return [(float(time), text) for time, kind, text in map(json.loads, lines) if kind == "o"]


class Player:
    """A terminal that plays a recording, forwards only."""

    def __init__(self, recorded: list[tuple[float, str]]) -> None:
        self._screen = pyte.Screen(COLUMNS, TALL)
        self._stream = pyte.Stream(self._screen)
        self._rest = iter(recorded)
        self._next = next(self._rest, None)

    def at(self, second: float, top: str) -> Picture:
        """Return the terminal's content at a second, from the line that begins with `top` on."""
        while self._next is not None and self._next[0] <= second:
            self._stream.feed(self._next[1])
            self._next = next(self._rest, None)
        texts = [line.rstrip() for line in self._screen.display]
        first = max((row for row, text in enumerate(texts) if top and text.startswith(top)), default=0)
        rows = ((row, tuple(runs(self._screen, first + row))) for row in range(min(ROWS, TALL - first)))
        return tuple((row, words) for row, words in rows if words)


def runs(screen: pyte.Screen, row: int) -> Iterator[Run]:
    """Yield the runs of a line: neighbouring characters of one style, ended by two blanks."""
    start, text, look = 0, "", ("", False)
    for column in range(COLUMNS + 1):
        cell = screen.buffer[row][column] if column < COLUMNS else None
        now = (_colour(cell), bool(cell.bold)) if cell is not None else ("end", False)
        blank = cell is None or cell.data == " "
        if text and (text.endswith("  ") or cell is None or (now != look and not blank)):
            if text.strip():
                yield (start, text.rstrip(), *look)
            text = ""
        if cell is not None and not (blank and not text):
            if not text:
                start, look = column, now
            text += cell.data


def _colour(cell: Any) -> str:
    return COLOURS.get(
        cell.fg.removeprefix("bright"), f"#{cell.fg}" if len(cell.fg) == 6 else COLOURS["default"]
    )


def pictures(cast: Path, scenes: tuple[Scene, ...]) -> list[tuple[float, Picture]]:
    """Return the film: each picture with its seconds; equal neighbours are merged."""
    player = Player(events(cast))
    film: list[tuple[float, Picture]] = []
    for scene in scenes:
        count = 1 if scene.begin == scene.end else max(1, round(scene.seconds / STEP))
        for number in range(count):
            second = scene.begin + (scene.end - scene.begin) * (number + 1) / count
            picture = player.at(second, scene.top)
            shown = scene.seconds / count
            if film and film[-1][1] == picture:
                film[-1] = (film[-1][0] + shown, picture)
            else:
                film.append((shown, picture))
    return film


def svg(film: list[tuple[float, Picture]], still: int, title: str) -> str:
    """Return the film as SVG.

    Args:
        film: the pictures that `pictures` returned.
        still: number of the picture for reduced motion.
        title: description for readers who do not see the film.
    """
    total = sum(shown for shown, _ in film)
    width, height = COLUMNS * CELL + 2 * MARGIN, ROWS * LINE + BAR + 2 * MARGIN
    names: dict[str, str] = {}
    rows: dict[tuple[int, tuple[Run, ...]], str] = {}
    bodies, frames, now = [], [], 0.0
    for number, (shown, picture) in enumerate(film):
        begin, end = 100 * now / total, 100 * (now + shown) / total
        frames.append(_keyframes(number, begin, end) + f"#p{number}{{animation-name:k{number}}}")
        used = "".join(f'<use href="#{rows.setdefault(line, f"r{len(rows)}")}"/>' for line in picture)
        bodies.append(f'<g id="p{number}" class="p">{used}</g>')
        now += shown
    lines = [f'<g id="{name}">{_row(*line, names)}</g>' for line, name in rows.items()]
    looks = "".join(f".{name}{{fill:{colour}}}" for colour, name in names.items())
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">
<title>{html.escape(title)}</title>
<style>
text{{font:{FONT}px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}}
.b{{font-weight:700}}{looks}
.p{{visibility:hidden;animation:{total:.2f}s step-end infinite}}
{"".join(frames)}
@media (prefers-reduced-motion:reduce){{.p{{animation:none}}#p{still}{{visibility:visible}}}}
</style>
<rect width="{width:.0f}" height="{height:.0f}" rx="10" fill="#161b22"/>
<circle cx="22" cy="18" r="6" fill="#ff5f57"/>
<circle cx="42" cy="18" r="6" fill="#febc2e"/>
<circle cx="62" cy="18" r="6" fill="#28c840"/>
<text x="{width / 2:.0f}" y="23" text-anchor="middle" fill="#8a92a0">smelt demo</text>
<defs>
{chr(10).join(lines)}
</defs>
{chr(10).join(bodies)}
</svg>
"""


def _keyframes(number: int, begin: float, end: float) -> str:
    before = "0%{visibility:hidden}" if begin > 0 else ""
    after = f"{end:.3f}%{{visibility:hidden}}" if end < 99.999 else ""
    return f"@keyframes k{number}{{{before}{begin:.3f}%{{visibility:visible}}{after}}}"


def _row(row: int, words: tuple[Run, ...], names: dict[str, str]) -> str:
    y = BAR + MARGIN + row * LINE + FONT * 0.7
    parts = []
    for column, text, colour, bold in words:
        name = names.setdefault(colour, f"c{len(names)}")
        look = f"{name} b" if bold else name
        x = MARGIN + column * CELL
        length = (
            f' textLength="{len(text) * CELL:.1f}" lengthAdjust="spacingAndGlyphs"' if len(text) > 1 else ""
        )
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{look}"{length}>{html.escape(text)}</text>')
    return "".join(parts)


def scenes(cast: Path) -> tuple[Scene, ...]:
    """Return the scenes of the demo's film: preparation, the open shop, the closed shop, three stills.

    Raises:
        SystemExit: the recording lacks a phase of the demo.
    """
    recorded = events(cast)
    opened, closed = (_first(recorded, text) for text in PHASES)
    end = recorded[-1][0]
    return (
        Scene(0.0, opened - 0.01, 3.5),
        Scene(opened, closed - 0.01, 12.5),
        Scene(closed, end, 2.5),
        Scene(end, end, 3.5, top="bronze.changes,"),
        Scene(end, end, 4.5, top="gold.customer,"),
        Scene(end, end, 5, top="table    "),
    )


def _first(recorded: list[tuple[float, str]], text: str) -> float:
    """Return the second at which the recording first has a text."""
    for second, output in recorded:
        if text in output:
            return second
    raise SystemExit(f"error: the recording lacks the demo's phase: {text}")


def draw(cast: Path, target: Path, still: str, title: str) -> None:
    """Write the film; the last picture with the text `still` is the picture for reduced motion.

    Raises:
        SystemExit: no picture of the recording has this text.
    """
    film = pictures(cast, scenes(cast))
    texts = [" ".join(run[1] for _, words in picture for run in words) for _, picture in film]
    shown = [number for number, text in enumerate(texts) if still in text]
    if not shown:
        raise SystemExit(f"error: no picture of the film has the text: {still}")
    target.write_text(svg(film, shown[-1], title), encoding="utf-8")


PHASES: Final = ("the shop is open", "the shop is closed")
"""Begins of the demo's phases after the preparation, in order."""

if __name__ == "__main__":
    draw(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        "the reader was killed",
        "smelt demo: changes of a live shop arrive in bronze, silver and gold; the reader is killed and "
        "resumes; at the end every table equals PostgreSQL",
    )
