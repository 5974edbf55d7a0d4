"""Executors for the large tables of a snapshot: had and examined beforehand, or those tables wait alone.

What keeps executors from copying may need a person: a cluster without our packages, Java that is missing, a
Spark Connect server that is gone. Then a table of more than one range gets an error of its own and is tried
again later, ever more rarely. The stream and the tables of one range never wait for Spark.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from bronze.errors import SmeltError, TransientError
from bronze.postgres.conninfo import pinned
from bronze.snapshot.chunks import chunks_of
from bronze.snapshot.elsewhere import Elsewhere
from bronze.snapshot.executors import examine
from bronze.snapshot.fitness import without_executors
from bronze.snapshot.range_task import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    import psycopg
    from psycopg.rows import TupleRow

    from bronze.catalog.source_table import SourceTable
    from bronze.config.sections import SnapshotSettings, SourceSettings
    from bronze.errors import TableError
    from bronze.snapshot.elsewhere import Begin
    from bronze.snapshot.executors import Executors, ExecutorsAtHand
    from bronze.snapshot.locks import Worker
    from bronze.store.landing import Landing

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
    ) -> tuple[Begin | None, Sequence[SourceTable]]:
        """As `ready`, and which tables can be copied: without executors, those of one range.

        Args:
            stack: ends the executors.
            tables: to be copied.
            watcher: a session of the reader, at the server that the tasks are to reach.
            stop: gives up what is tried.
            fail: is told of each table that waits for executors which cannot be had.

        Raises:
            TransientError: they cannot be had now.
        """
        try:
            return stack.enter_context(self.ready(tables, watcher, stop)), tables
        except TransientError:
            raise
        except SmeltError as error:
            for table in filter(self._is_large, tables):
                fail(without_executors(table.table, error))
            return None, [table for table in tables if not self._is_large(table)]

    @contextmanager
    def ready(
        self, tables: Sequence[SourceTable], watcher: psycopg.Connection[TupleRow], stop: threading.Event
    ) -> Iterator[Begin | None]:
        """Executors, started and examined, where a table has more than one range; None elsewhere.

        Before anything is locked, since an engine may take long to start; and only for as long as there is
        something to copy.

        Args:
            tables: to be copied.
            watcher: a session of the reader, at the server that the tasks are to reach.
            stop: gives up what is tried; a cluster may have no executor for a long time.

        Raises:
            SmeltError: they cannot be had, or cannot copy.
        """
        if self._at_hand is None or not any(map(self._is_large, tables)):
            yield None
            return
        progress = self._landing.progress
        with ExitStack() as stack:
            progress.set(copies_wait="large tables wait for executors")
            try:
                executors = stack.enter_context(self._at_hand())
                uri, workers = self._landing.sink.uri, self._settings.workers
                with _cancelled_by(stop, executors):
                    examine(executors, pinned(self._source, watcher.info), place_of(uri))
            finally:
                progress.set(copies_wait="")

            def begin(holder: Worker, taken_at: datetime) -> Elsewhere:
                source = pinned(self._source, holder.connection.info)
                return Elsewhere(
                    executors, holder, source=source, taken_at=taken_at, uri=uri, workers=workers
                )

            yield begin

    def _is_large(self, table: SourceTable) -> bool:
        """Whether a table has more than one range, so that executors copy it."""
        rows = self._settings.chunk_rows
        return len(chunks_of([(table.table, table.pages)], table.rows_estimate, rows)) > 1


@contextmanager
def _cancelled_by(stop: threading.Event, executors: Executors) -> Iterator[None]:
    """In this block, jobs are cancelled when `stop` is set."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK):
            if stop.is_set():
                executors.cancel()

    threading.Thread(target=watch, name="smelt-executors-stop", daemon=True).start()
    try:
        yield
    finally:
        over.set()
