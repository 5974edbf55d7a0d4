"""`smelt tail`: changes as they arrive in bronze, followed until an interruption. Needs no Spark.

The command only reads, so it may run beside a pipeline, and end at any moment. A lake that cannot be read for
a while is waited for; the reading then continues behind the last line.
"""

from __future__ import annotations

import math
import select
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, TransientError
from deltasmelt.bronze.lake.failures import lake_opened
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.store.arrivals import Arrivals
from deltasmelt.pipelines.moments import named_moment, parse_as_of
from deltasmelt.pipelines.runtime.named_tables import is_named, known_tables
from deltasmelt.pipelines.tail.feed import Feed, Selection
from deltasmelt.pipelines.tail.records import Shapes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.arrivals import Arrival
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.tail.records import Change
    from deltasmelt.pipelines.terminal.output import Output

_POLL_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class TailOptions:
    """What is shown.

    Attributes:
        tables: names and patterns of tables; empty: all.
        operations: operations; None: all but the rows of copies.
        start: an LSN or a time; None: now.
    """

    tables: Sequence[str] = ()
    operations: Collection[str] | None = None
    start: str | None = None


def run_tail(pipeline: Pipeline, options: TailOptions, output: Output) -> None:
    """Print changes until an interruption.

    Raises:
        SmeltError: the lake cannot be read, or lies in a catalog; no such table; changes were removed.
        BrokenPipeError: nobody reads the output any more.
    """
    tail = Tail(pipeline, options, output)
    with output.waiting("waiting for bronze"):
        while not tail.begin():
            _pause(_RETRY_SECONDS / 2)
    try:
        while True:
            _pause(_POLL_SECONDS if tail.step() else _RETRY_SECONDS)
    except BrokenPipeError:
        raise
    except BaseException:  # also an interruption
        tail.end()
        raise


class Tail:
    """The state of the command between two polls."""

    def __init__(self, pipeline: Pipeline, options: TailOptions, output: Output) -> None:
        if not pipeline.lake_address().place.shows_files:
            raise DefiniteError(
                "smelt tail reads the log and the files of bronze, and a catalog shows neither",
                code="tail-place",
                where=pipeline.lake_address().label,
                remedy="query the newest changes: smelt sql FILE 'SELECT * FROM bronze.changes ORDER BY "
                "commit_lsn DESC, seq DESC LIMIT 20'",
            )
        self._pipeline = pipeline
        self._output = output
        self._tables = options.tables
        self._moment = None if options.start is None else parse_as_of(options.start, where="--from")
        selection = Selection(options.tables, options.operations)
        self._feed = Feed(selection, output.line, is_json=output.json, hidden=self._without_masked)
        self._arrivals = Arrivals(
            pipeline.lake_address(),
            pipeline.pipeline,
            learn=self._learn,
            rows_of_copies=selection.rows_of_copies,
        )
        # None: not known yet
        self._masked: Mapping[TableName, set[str]] | None = {}
        self._has_waited = self._fails = False
        self._reported: set[str] = set()

    def begin(self) -> bool:
        """Set the place of the first change; return False while bronze does not exist."""
        try:
            with lake_opened(self._pipeline.lake_address().label):
                place = self._begin()
        except TransientError as error:
            if not self._has_waited:
                raise
            self._wait_out(error)
            return False
        if place is None:
            return False
        start = f"after {place}" if self._moment is None else f"from {named_moment(self._moment)}"
        self._output.report(f"following bronze {start}; times are in UTC; Ctrl-C ends")
        return True

    def _begin(self) -> Lsn | None:
        if not self._has_waited:
            # Whoever waits for bronze may name tables that come later.
            self._check_tables()
        if not self._arrivals.exists():
            where = self._pipeline.lake_address().label
            self._report_once(f"{where}: bronze does not exist yet, waiting for its first commit")
            self._has_waited = True
            return None
        # Whoever has waited for bronze wants to see its first changes.
        return self._arrivals.begin(ZERO if self._has_waited and self._moment is None else self._moment)

    def step(self) -> bool:
        """Print what has arrived; return False if the lake cannot be read at present.

        Raises:
            SmeltError: the lake was removed; changes were removed.
        """
        polled = self._arrivals.poll()
        try:
            while (arrival := self._next(polled)) is not None:
                self._feed.take(arrival, time.monotonic())
        except TransientError as error:
            self._wait_out(error)
            return False
        if self._fails:
            self._output.report("the lake can be read again")
        self._fails = False
        self._feed.rest(time.monotonic())
        return True

    def end(self) -> None:
        """Print what is still only counted."""
        self._feed.rest(math.inf)

    def _wait_out(self, error: TransientError) -> None:
        """Report a failure of the storage; raise another error."""
        if error.__cause__ is None:  # no failure of the storage: the lake was removed or exchanged
            raise error
        if not self._fails:
            self._output.report(f"{error.in_a_line()}; trying again")
        self._fails = True

    def _report_once(self, text: str) -> None:
        if text not in self._reported:
            self._output.report(text)
        self._reported.add(text)

    def _next(self, polled: Iterator[Arrival]) -> Arrival | None:
        # Only failures of the lake are converted: the output may fail, too.
        with lake_opened(self._pipeline.lake_address().label):
            return next(polled, None)

    def _learn(self, relations: Sequence[Relation]) -> None:
        """Use these shapes for the changes that follow."""
        if self._has_waited and relations:
            tables = Shapes(relations).tables()
            for name in self._tables:
                if not any(is_named(table, name) for table in tables):
                    self._report_once(f"bronze has no table {name} yet")
        if self._pipeline.quality.masked and relations:
            # Loads the quality checks, which takes a second.
            from deltasmelt.pipelines.tail.masked import masked_columns  # noqa: PLC0415

            try:
                self._masked = masked_columns(self._pipeline, relations)
            except ConfigurationError as error:
                # Bronze is being filled, table by table.
                if not self._has_waited:
                    raise
                self._masked = None
                self._report_once(f"{error}: all values are hidden until bronze has the column")
        self._feed.learn(relations)

    def _without_masked(self, change: Change, shapes: Shapes) -> Change:
        if not self._pipeline.quality.masked:
            return change
        from deltasmelt.pipelines.tail.masked import without_masked  # noqa: PLC0415 - as above

        return without_masked(change, self._masked, shapes)

    def _check_tables(self) -> None:
        """Refuse a name or pattern that matches no table of bronze, unless bronze has no table yet.

        Raises:
            ConfigurationError: ``table-unknown``.
        """
        tables = sorted(Shapes(self._arrivals.relations()).tables())
        if tables:
            known_tables(self._tables, tables)


def _pause(seconds: float) -> None:
    """Wait; end if nobody reads the output any more, although nothing is written now.

    Raises:
        BrokenPipeError: the output is a pipe whose other end is closed.
    """
    time.sleep(seconds)
    polled = select.poll()
    with suppress(OSError, ValueError):  # no file
        polled.register(sys.stdout.fileno(), 0)
    if any(event & select.POLLERR for _, event in polled.poll(0)):
        raise BrokenPipeError
