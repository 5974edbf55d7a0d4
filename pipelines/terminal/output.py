"""Printing of results: text for people, JSON for programs, in one module.

On a terminal, text is rich (colours, boxed tables, highlighted JSON). Elsewhere text is plain lines,
independent of the width, so a log or a pipe can be read and compared; rich is not loaded then. Data goes to
standard output, progress and messages to standard error: `smelt sql … > rows.txt` contains rows alone.

``--log-format json`` writes the messages and the log of a long run as one JSON object per line, so a
collector of logs needs no pattern. Every object has ``time`` (UTC), ``level``, ``logger``, ``process`` and
``message``; an error of deltasmelt also has ``code``, ``where`` and ``remedy``, and a traceback is
``traceback``. Standard error has the command's messages, `smelt.log` the log.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import uuid
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.pipelines.terminal.visible import visible

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from rich.console import Console

    from deltasmelt.bronze.errors import SmeltError

# Each process makes the choice before its first message; the reader's process receives the choice with its
# orders.
_chosen: list[bool] = []
_LOGGER_NAME: Final = "smelt"


class LogFormat(StrEnum):
    """Formats of `--log-format`."""

    TEXT = "text"
    JSON = "json"


def write_json() -> None:
    """Write messages and log of this process as JSON from now on."""
    _chosen.append(True)


def as_json() -> bool:
    """Check whether this process writes messages and log as JSON."""
    return bool(_chosen)


def report(message: str, *, level: str = "info", error: SmeltError | None = None) -> None:
    """Print one line to standard error; the message contains no password."""
    record = _record(datetime.now(UTC), level, _LOGGER_NAME, message)
    if error is not None:
        record |= {"code": error.code, "where": error.where, "remedy": error.remedy}
    sys.stderr.write(visible(json.dumps(record, ensure_ascii=False)) + "\n")
    sys.stderr.flush()


def logged(record: logging.LogRecord, message: str, traceback: str | None) -> str:
    """Return a record of Python's logging as one line."""
    when = datetime.fromtimestamp(record.created, UTC)
    entry = _record(when, record.levelname.lower(), record.name, message)
    if traceback:
        entry["traceback"] = traceback
    return visible(json.dumps(entry, ensure_ascii=False))


def _record(when: datetime, level: str, logger: str, message: str) -> dict[str, object]:
    return {
        "time": when.isoformat(timespec="milliseconds"),
        "level": level,
        "logger": logger,
        "process": os.getpid(),
        "message": message,
    }


ERROR: Final = "bold red"
WARNING: Final = "yellow"
GOOD: Final = "green"
TITLE: Final = "bold"
QUIET: Final = "dim"
"""Styles of every command's output."""
_GAP: Final = 2
"""Columns of the terminal between two columns of a table."""


@cache
def messages() -> Console:
    """Return the only console of standard error, so that a message and a moving line never mix."""
    from rich.console import Console  # noqa: PLC0415 - most commands never print in colours

    return Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)


@contextmanager
def waiting(text: str, announce: Callable[[str], None] | None) -> Iterator[None]:
    """Show a text and the elapsed time in a line of the terminal until the block ends.

    Other messages appear above the line; results are printed after the block.

    Args:
        text: the work that takes long, e.g. ``starting Spark``.
        announce: called once with the text where no line can move; None: print nothing at all.
    """
    with moving_line(text if announce is not None else None) as move:
        if announce is not None and move is None:
            announce(f"{text} …")
        yield


@contextmanager
def moving_line(text: str | None) -> Iterator[Callable[[str], None] | None]:
    """Show a text and the elapsed time in a line of the terminal; yield a function that changes the text.

    Any thread may change the text. Where no line can move, or without a text, yield None.
    """
    # Only the main thread moves a line: beside other threads a prompt or a live view may draw.
    in_other_thread = threading.current_thread() is not threading.main_thread()
    if text is None or in_other_thread or as_json() or not sys.stderr.isatty() or messages().is_dumb_terminal:
        yield None
        return
    from rich.progress import (  # noqa: PLC0415 - on a terminal alone
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.table import Column  # noqa: PLC0415

    one_line = Column(no_wrap=True, overflow="ellipsis")
    description = TextColumn("{task.description} …", markup=False, table_column=one_line)
    columns = SpinnerColumn(), TimeElapsedColumn(), description
    with Progress(*columns, console=messages(), transient=True, redirect_stdout=False) as progress:
        task = progress.add_task(text, total=None)
        yield lambda changed: progress.update(task, description=visible(changed))


_FORCES_COLOURS: Final = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables with which rich treats a file or pipe as a terminal."""


class Format(StrEnum):
    """Formats of `--output`."""

    TEXT = "text"
    JSON = "json"


@dataclass(slots=True)
class Output:
    """The output of a command."""

    # format for people or for programs
    format: Format = Format.TEXT
    _data: Console | None = field(default=None, repr=False)

    @property
    def json(self) -> bool:
        """True if a program reads the output."""
        return self.format is Format.JSON

    @property
    def rich(self) -> bool:
        """True if a person reads the output on a terminal; a file stays plain even with FORCE_COLOR."""
        return not self.json and sys.stdout.isatty() and self.console.is_terminal

    @property
    def console(self) -> Console:
        """The terminal, for live views."""
        if self._data is None:
            from rich.console import Console  # noqa: PLC0415 - on a terminal alone

            self._data = Console(soft_wrap=True, highlight=False, emoji=False)
        return self._data

    def report(self, text: str, *, style: str | None = None) -> None:
        """Print progress or a message, apart from the data."""
        if as_json():
            report(text)
        elif _has_colours() and messages().is_terminal:
            _print(messages(), text, style)
        else:
            sys.stderr.write(visible(text) + "\n")
            sys.stderr.flush()

    def waiting(self, text: str) -> AbstractContextManager[None]:
        """Show a text and the elapsed time on a terminal while the block runs; print nothing elsewhere."""
        return waiting(visible(text), lambda _: None)

    def agreed(self, question: str) -> bool:
        """Request the agreement of a person at a terminal; return False without a terminal."""
        if not (sys.stdin.isatty() and (sys.stderr.isatty() or sys.stdout.isatty())):
            return False
        from rich.prompt import Confirm  # noqa: PLC0415 - on a terminal alone

        console = messages() if sys.stderr.isatty() else self.console
        _print(console, question, None)
        return Confirm.ask("Continue?", console=console, default=False)

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """Print one line of the result."""
        if self.rich:
            _print(self.console, text, style)
        else:
            sys.stdout.write(visible(text) + "\n")
            sys.stdout.flush()

    def document(self, text: str) -> None:
        """Print a JSON document, indented, with every digit of its numbers; highlighted on a terminal."""
        indented = visible(_indented(text))
        if self.rich:
            from rich.highlighter import JSONHighlighter  # noqa: PLC0415 - on a terminal alone

            self.console.print(JSONHighlighter()(indented))
        else:
            self.line(indented)

    def markdown(self, text: str) -> None:
        """Print Markdown, rendered on a terminal and as plain source elsewhere."""
        if self.rich:
            from rich.markdown import Markdown  # noqa: PLC0415 - on a terminal alone

            self.console.print(Markdown(visible(text)), soft_wrap=False)
        else:
            self.line(text.rstrip())

    def value(self, plain: Any) -> None:
        """Print one JSON value on one line."""
        sys.stdout.write(visible(json.dumps(plain, default=json_value, ensure_ascii=False)) + "\n")
        sys.stdout.flush()

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        title: str | None = None,
        right: Sequence[str] = (),
        spare: Sequence[str] = (),
    ) -> None:
        """Print rows under their headings; the columns in `right` are flush right.

        On a terminal that is too narrow, the last columns in `spare` are left out, so that names stay whole.
        """
        columns, right, spare = [list(map(visible, names)) for names in (columns, right, spare)]
        cells = [[visible(text_value(value)) for value in row] for row in rows]
        title = None if title is None else visible(title)
        if not self.rich:
            self._plain_table(columns, cells, title, right)
            return
        from rich import box  # noqa: PLC0415 - on a terminal alone
        from rich.markup import escape  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415

        # No lines between columns: names of tables should not be broken on a terminal of 80 columns.
        table = Table(
            title=title, title_justify="left", header_style="bold",
            box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
        )  # fmt: skip
        columns = self._fitting(columns, cells, spare)
        for column in columns:
            table.add_column(escape(column), justify="right" if column in right else "left", overflow="fold")
        for row in cells:
            table.add_row(*(escape(cell) for cell in row[: len(columns)]))
        self.console.print(table, soft_wrap=False)

    def _fitting(self, columns: list[str], cells: Sequence[Sequence[str]], spare: Sequence[str]) -> list[str]:
        """Return the columns without the last ones in `spare` that do not fit into the terminal."""
        ends, end = [], -_GAP
        for column, *column_cells in zip(columns, *cells, strict=True):
            end += _GAP + max(map(len, [column, *column_cells]))
            ends.append(end)
        while len(columns) > 1 and columns[-1] in spare and ends[len(columns) - 1] > self.console.width:
            columns = columns[:-1]
        return columns

    def _plain_table(
        self, columns: Sequence[str], cells: list[list[str]], title: str | None, right: Sequence[str]
    ) -> None:
        flat = [[cell.replace("\n", "\\n") for cell in row] for row in cells]
        widths = [
            max(map(len, [column, *column_cells]))
            for column, *column_cells in zip(columns, *flat, strict=True)
        ]
        if title:
            self.line(title)
        for row in [list(columns), ["-" * width for width in widths], *flat]:
            padded = [
                cell.rjust(width) if column in right else cell.ljust(width)
                for column, cell, width in zip(columns, row, widths, strict=True)
            ]
            self.line("  ".join(padded).rstrip())


class SilentOutput(Output):
    """Output for a caller from Python: results are values, and text is dropped."""

    def report(self, text: str, *, style: str | None = None) -> None:
        """Drop the message."""

    def line(self, text: str = "", *, style: str | None = None) -> None:
        """Drop the line."""

    def waiting(self, text: str) -> AbstractContextManager[None]:  # noqa: ARG002 - its interface
        """Run the block in silence."""
        return nullcontext()


def _has_colours() -> bool:
    """Check whether standard error may show colours; rich makes the decision then."""
    # Rich's own rules hold: no colours where standard error is a file or a pipe, with `NO_COLOR` or
    # `TERM=dumb`; `FORCE_COLOR` switches them on.
    return sys.stderr.isatty() or any(os.environ.get(name) for name in _FORCES_COLOURS)


def _print(console: Console, text: str, style: str | None) -> None:
    from rich.markup import escape  # noqa: PLC0415 - on a terminal alone

    console.print(escape(visible(text)), style=style)


def _indented(text: str) -> str:
    """Return JSON with indentation. Python's floats would drop digits, so such numbers stay text."""
    mark = uuid.uuid4().hex
    plain = json.loads(text, parse_float=lambda digits: mark + digits)
    return re.sub(f'"{mark}([^"]*)"', r"\1", json.dumps(plain, indent=2, ensure_ascii=False))


def text_value(value: object) -> str:
    """Return a value as a cell of a table: NULL is visible, nested values are JSON."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes | bytearray):
        return "0x" + value.hex()
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=json_value, ensure_ascii=False)
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return str(value)


def json_value(value: object) -> object:
    """Return a value unknown to `json`: exact numbers and times as text, binary as hexadecimal."""
    if isinstance(value, Decimal | date):
        return str(value) if isinstance(value, Decimal) else value.isoformat()
    if isinstance(value, bytes | bytearray):
        return "0x" + value.hex()
    return str(value)
