"""Statements and meta-commands over a lake, in sequence, at a cut fixed until the user moves the cut.

The module serves a person at a terminal and a script alike: only the runner of the work (`warm_spark.Runner`)
differs.
"""

from __future__ import annotations

import io
import shutil
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.figures import counted, moment_text, timing_text
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.pipelines.moments import parse_as_of
from deltasmelt.pipelines.spark.lake_sql import LakeSql, cut_of
from deltasmelt.pipelines.sql_shell import meta_commands as meta
from deltasmelt.pipelines.sql_shell.catalog import Cells, CutCatalog, columns_listed, is_list, tables_listed
from deltasmelt.pipelines.sql_shell.paging import Paged, pager_command
from deltasmelt.pipelines.sql_shell.results import STREAMED, FirstRows, first_rows, fits, one_value_a_line
from deltasmelt.pipelines.sql_shell.warm_spark import CancelledError
from deltasmelt.pipelines.terminal.arguments import RowFormat
from deltasmelt.pipelines.terminal.visible import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.consistent_cut import ConsistentCut
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.spark.fresh_sql import FreshSql
    from deltasmelt.pipelines.sql_shell.exports import Export
    from deltasmelt.pipelines.sql_shell.splitting import Statement
    from deltasmelt.pipelines.sql_shell.warm_spark import Runner
    from deltasmelt.pipelines.terminal.output import Output

_FORMATS: Final = (RowFormat.TABLE, RowFormat.JSON, RowFormat.CSV)


@dataclass(slots=True)
class Display:
    """Display of results.

    Attributes:
        limit: largest number of rows in a table.
        expanded: one value per line: ``on``, ``off``, or ``auto`` for rows wider than the terminal.
        timing: show a statement's time.
        environment: environment with ``PAGER`` for a person at a terminal; None for a program.
        export: file for the rows.
        fresh: each statement reads silver at the log's head, and not at the cut.
    """

    limit: int = 1000
    form: RowFormat = RowFormat.TABLE
    expanded: str = "auto"
    timing: bool = False
    environment: Mapping[str, str] | None = None
    export: Export | None = None
    fresh: bool = False

    @property
    def streams(self) -> bool:
        """True if rows are printed as they arrive, each on a separate line."""
        return self.export is None and self.form in STREAMED


class SqlSession:
    """The statements' view of the lake, and the display of their rows.

    `cut` is the present moment. `cut_read` is the moment of the last statement; it differs after a read at
    the log's head.
    """

    def __init__(
        self, pipeline: Pipeline, output: Output, runner: Runner, cut: ConsistentCut, display: Display
    ) -> None:
        self._pipeline = pipeline
        self._output = output
        self._runner = runner
        self._lake: LakeSql | None = None
        self._fresh: FreshSql | None = None
        self.cut_read: ConsistentCut | None = None
        self._kept_from = ZERO
        self._last: str | None = None
        self._display = display
        self._person = display.environment is not None
        self.cut = cut
        self.catalog = CutCatalog(pipeline, cut)

    def run(self, statement: Statement) -> None:
        """Run a statement or a meta-command and print the result.

        Raises:
            SmeltError: the statement is refused, or fails.
            CancelledError: Ctrl-C cancelled the statement.
        """
        if statement.is_meta:
            self._meta(meta.parse_meta(statement.text))
        else:
            self._last = statement.text
            self._statement(statement.text)

    # -- statements

    def _statement(self, text: str, *, paged: bool = True) -> None:
        sink = self._sink(paged=paged)
        begin = time.monotonic()

        def work(spark: SparkSession) -> FirstRows | str:
            nonlocal begin
            begin = time.monotonic()  # Spark is there
            return self._result(spark, text, sink)

        try:
            result = self._runner.run(work)
            seconds = time.monotonic() - begin
            if isinstance(result, FirstRows):
                sink.write(self._text(result))
        except BrokenPipeError:
            if not sink.paging:
                raise
            return  # the pager was left before the end
        finally:
            sink.close()
        self._foot(result, seconds)

    def _result(self, spark: SparkSession, text: str, sink: Paged) -> FirstRows | str:
        """Return the rows of a table, or a description of the effect; lines of rows go to the sink."""
        lake = self._lake_at_cut(spark)
        frame = lake.query(text)
        self.cut_read = lake.cut
        if lake.kept_from > self._kept_from:
            self._kept_from = lake.kept_from
            self._output.report(
                f"bronze.changes begins at {lake.kept_from}: earlier changes were removed (bronze.retention)"
            )
        if not frame.columns or (not self._is_for_people and text.split(maxsplit=1)[0].lower() == "set"):
            return "done"
        if self._display.export is not None:
            return self._display.export.write(spark, frame)
        if not self._display.streams:
            return first_rows(frame, self._display.limit)
        for line in STREAMED[self._display.form](frame):
            if self._runner.cancelled:
                break
            sink.write(self._line(line))
        return ""

    def _line(self, line: str) -> str:
        """Return a line of rows; escapes change CSV for a terminal alone, and JSON not at all."""
        if self._display.form is RowFormat.JSON:
            return visible(line)
        row = line.removesuffix("\r\n")
        return f"{visible(row)}\r\n" if sys.stdout.isatty() else line

    @property
    def _is_for_people(self) -> bool:
        """Check whether a person reads the rows; a program does not want the rows of SET."""
        return self._display.export is None and not self._display.streams

    def _lake_at_cut(self, spark: SparkSession) -> LakeSql:
        if self._display.fresh:
            from deltasmelt.pipelines.spark.fresh_sql import FreshSql  # noqa: PLC0415 - loads what folds

            if self._lake is not None:  # a view of the cut must not be found where a table is looked for
                self._lake.forget()
            self._fresh = self._fresh or FreshSql(spark, self._pipeline)
            return self._fresh
        if self._fresh is not None:
            self._fresh.close()
            self._fresh = None
        if self._lake is None:
            self._lake = LakeSql(spark, self._pipeline, self.cut, alone=True)
        elif self._lake.cut != self.cut:
            self._lake.move(self.cut)
        return self._lake

    def _text(self, rows: FirstRows) -> str:
        """Return a table's rows as text with its line ends."""
        expanded = self._display.expanded == "on"
        if self._display.expanded == "auto" and self._output.rich:  # elsewhere no width limits a line
            expanded = not fits(rows.columns, rows.rows, shutil.get_terminal_size().columns)
        if rows.rows and expanded:
            return "".join(f"{line}\n" for line in one_value_a_line(rows.columns, rows.rows))
        return self._table(rows.columns, rows.rows, right=rows.numbers)

    def _table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()
    ) -> str:
        if self._output.rich:
            with self._output.console.capture() as styled:
                self._output.table(columns, rows, right=right)
            return styled.get()
        with redirect_stdout(io.StringIO()) as plain:
            self._output.table(columns, rows, right=right)
        return plain.getvalue()

    def _foot(self, result: FirstRows | str, seconds: float) -> None:
        """Print facts outside the rows; for a program, only the facts it would miss."""
        summary = result if isinstance(result, str) else counted(len(result.rows), "row")
        printed = self._person or self._display.export is not None
        if isinstance(result, FirstRows) and result.more:
            summary, printed = f"the first {summary}; --limit shows more, --output json or csv all", True
        parts = [summary] if summary and printed else []
        if self._display.fresh and self._person and self.cut_read is not None:
            parts.append(f"as of {cut_text(self.cut_read)}")
        if self._display.timing:
            parts.append(timing_text(seconds))
        if parts:
            self._output.report(", ".join(parts), style="dim")

    @property
    def moment(self) -> str:
        """Return the moment of the next statement, for a prompt."""
        return "head" if self._display.fresh else str(self.cut.commit_lsn)

    def close(self) -> None:
        """Drop the views of the lake; the session may be borrowed."""
        if self._lake is not None:
            self._lake.forget()
        if self._fresh is not None:
            self._fresh.close()
            self._fresh = None

    # -- meta-commands

    def _meta(self, command: meta.MetaCommand) -> None:
        match command.name:
            case "d":
                self._describe(command.argument)
            case "cut":
                self._cut(command.argument)
            case "fresh":
                self._display.fresh = meta.switched(command.argument, self._display.fresh, "fresh")
                self._output.report(
                    "statements read silver at the log's head"
                    if self._display.fresh
                    else f"statements read the lake as of {cut_text(self.cut)}"
                )
            case "timing":
                self._display.timing = meta.switched(command.argument, self._display.timing, "timing")
                self._output.report(f"timing is {'on' if self._display.timing else 'off'}")
            case "watch":
                self._watch(*meta.watch_arguments(command.argument))
            case "output":
                self._form(command.argument)
            case "x":
                self._expanded(command.argument)
            case "?":
                self._print(Cells(("command", "what it does"), meta.HELP))
            case "q":
                raise EOFError

    def _describe(self, pattern: str) -> None:
        tables = self.catalog.matching(pattern) if pattern else self.catalog.tables
        if is_list(pattern):
            self._print(tables_listed(zip(tables, self.catalog.rows(tables), strict=True)))
        for table in () if is_list(pattern) else tables:
            self._print(columns_listed(table))

    def _cut(self, argument: str) -> None:
        if argument == "newest":
            self.move(cut_of(self._pipeline))
        elif argument:
            self.move(cut_of(self._pipeline, parse_as_of(argument, where=r"\cut")))
        self._output.line(f"as of {cut_text(self.cut)}")
        newest = cut_of(self._pipeline)
        if newest.commit_lsn != self.cut.commit_lsn:
            self._output.line(f"the newest is {cut_text(newest)}; \\cut newest shows it")

    def move(self, cut: ConsistentCut) -> None:
        """Move to another cut."""
        if cut != self.cut:
            self.cut = cut
            self.catalog = CutCatalog(self._pipeline, cut)

    def _watch(self, seconds: float, times: int | None) -> None:
        if self._last is None:
            raise ConfigurationError(
                "no statement to repeat",
                code="sql-meta",
                remedy="run a statement, then use \\watch",
            )
        runs = 0
        try:
            while times is None or runs < times:
                if runs:
                    time.sleep(seconds)
                if not self._display.fresh:
                    self.move(cut_of(self._pipeline))
                state = "at the log's head" if self._display.fresh else f"as of {cut_text(self.cut)}"
                self._output.line(f"{datetime.now(UTC):%H:%M:%S} UTC, {state}")
                self._statement(self._last, paged=False)
                runs += 1
        except (KeyboardInterrupt, CancelledError):
            if not self._person:
                raise

    def _form(self, argument: str) -> None:
        if argument:
            if argument not in _FORMATS:
                raise meta.unfit("o", argument, "table, json or csv")
            self._display.form = RowFormat(argument)
        self._output.report(f"results are printed as {self._display.form.value}")

    def _expanded(self, argument: str) -> None:
        if argument and argument not in {"on", "off", "auto"}:
            raise meta.unfit("x", argument, "on, off or auto")
        self._display.expanded = argument or ("off" if self._display.expanded == "on" else "on")
        self._output.report(f"one value per line: {self._display.expanded}")

    def _print(self, cells: Cells) -> None:
        head = f"{visible(cells.head)}\n" if cells.head else ""
        sink = self._sink()
        try:
            sink.write(head + self._table(cells.columns, cells.rows, right=cells.right))
        except BrokenPipeError:
            if not sink.paging:
                raise
        finally:
            sink.close()

    def _sink(self, *, paged: bool = True) -> Paged:
        command = pager_command(self._display.environment) if self._display.environment and paged else None
        return Paged(command, shutil.get_terminal_size().lines)


def cut_text(cut: ConsistentCut) -> str:
    """Return a cut's LSN and the time of its commit."""
    moment = f" ({moment_text(cut.commit_ts)})" if cut.commit_ts else ""
    return f"{cut.commit_lsn}{moment}"
