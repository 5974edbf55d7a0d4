"""Executors for the large tables of a snapshot: had and examined beforehand, or those tables wait alone.

What keeps executors from copying may need a person: a cluster without our packages, Java that is missing, a
Spark Connect server that is gone, a cluster without a free executor. Then a table of more than one range gets
an error of its own and is tried again later, ever more rarely. The stream and the tables of one range never
wait for Spark: they are copied first.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import SmeltError, TransientError
from deltasmelt.bronze.postgres.conninfo import pinned
from deltasmelt.bronze.snapshot.chunks import chunks_of
from deltasmelt.bronze.snapshot.elsewhere import Elsewhere
from deltasmelt.bronze.snapshot.executors import examine
from deltasmelt.bronze.snapshot.fitness import silent, without_executors
from deltasmelt.bronze.snapshot.range_task import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    import psycopg
    from psycopg.rows import TupleRow

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SnapshotSettings, SourceSettings
    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.snapshot.elsewhere import Begin
    from deltasmelt.bronze.snapshot.executors import Executors, ExecutorsAtHand
    from deltasmelt.bronze.snapshot.locks import Worker
    from deltasmelt.bronze.store.landing import Landing

_LOOK: Final = 0.2


class Help:
    """Executors for snapshots, if there are any.

    Args:
        at_hand: makes them ready; None: there are none.
        source: the server, as the pipeline file says it.
        settings: size of ranges, jobs at once.
        landing: where rows go.
    """

    def __init__(
        self,
        at_hand: ExecutorsAtHand | None,
        source: SourceSettings,
        settings: SnapshotSettings,
        landing: Landing,
    ) -> None:
        self._at_hand = at_hand
        self._source = source
        self._settings = settings
        self._landing = landing

    def begin(
        self,
        stack: ExitStack,
        tables: Sequence[SourceTable],
        watcher: psycopg.Connection[TupleRow],
        stop: threading.Event,
        fail: Callable[[TableError], None],
    ) -> Begin | None:
        """Executors for large tables, started and examined; None where they cannot be had.

        Before anything is locked, since an engine may take long to start; and only for as long as there is
        something to copy.

        Args:
            stack: ends the executors.
            tables: large ones.
            watcher: a session of the reader, at the server that the tasks are to reach.
            stop: gives up what is tried; a cluster may have no executor for a long time.
            fail: is told of each table that waits for executors which cannot be had.

        Raises:
            TransientError: they cannot be had now.
        """
        try:
            return stack.enter_context(self._ready(watcher, stop))
        except TransientError:
            raise
        except SmeltError as error:
            for table in tables:
                fail(without_executors(table.table, error))
            return None

    @contextmanager
    def _ready(self, watcher: psycopg.Connection[TupleRow], stop: threading.Event) -> Iterator[Begin]:
        """As `begin`.

        Raises:
            SmeltError: they cannot be had, or cannot copy.
        """
        assert self._at_hand is not None  # noqa: S101 - `large` was empty
        progress, silence = self._landing.progress, self._source.timing.executors_silence
        with ExitStack() as stack:
            progress.set(copies_wait="large tables wait for executors")
            try:
                executors = stack.enter_context(self._at_hand())
                uri, workers = self._landing.sink.uri, self._settings.workers
                with _cancelled_by(stop, executors, silence):
                    examine(executors, pinned(self._source, watcher.info), place_of(uri))
            finally:
                progress.set(copies_wait="")

            def begin(holder: Worker, taken_at: datetime) -> Elsewhere:
                source = pinned(self._source, holder.connection.info)
                return Elsewhere(
                    executors, holder, source=source, taken_at=taken_at, uri=uri, workers=workers
                )

            yield begin

    def is_large(self, table: SourceTable) -> bool:
        """Whether executors copy a table: there are some, and it has more than one range."""
        if self._at_hand is None:
            return False
        rows = self._settings.chunk_rows
        return len(chunks_of([(table.table, table.pages)], table.rows_estimate, rows)) > 1


@contextmanager
def _cancelled_by(stop: threading.Event, executors: Executors, silence: float) -> Iterator[None]:
    """In this block, jobs are cancelled when `stop` is set, or after some seconds.

    Raises:
        DefiniteError: ``executors-unfit``: the time was over.
    """
    over, late, deadline = threading.Event(), threading.Event(), time.monotonic() + silence

    def watch() -> None:
        while not over.wait(_LOOK):
            if time.monotonic() > deadline:
                late.set()
            if stop.is_set() or late.is_set():
                executors.cancel()

    threading.Thread(target=watch, name="smelt-executors-stop", daemon=True).start()
    try:
        yield
    except TransientError as error:
        if late.is_set() and not stop.is_set():
            raise silent(silence) from error
        raise
    finally:
        over.set()
