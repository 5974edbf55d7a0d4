"""Provide executors for the large tables of a snapshot: checked beforehand, so that only these tables wait.

A failure of executors may need a person: a cluster without deltasmelt's packages, missing Java, a stopped
Spark Connect server, a cluster without a free executor. A table of more than one range then gets an error,
and the reader retries the table with growing pauses. The stream and the tables of one range never wait for
Spark: the reader copies these tables first.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import SmeltError, TransientError
from deltasmelt.bronze.lake.place import Location
from deltasmelt.bronze.postgres.conninfo import pinned
from deltasmelt.bronze.snapshot.chunks import chunks_of
from deltasmelt.bronze.snapshot.executor_errors import silent, without_executors
from deltasmelt.bronze.snapshot.executors import examine
from deltasmelt.bronze.snapshot.remote_copy import RemoteCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    import psycopg
    from psycopg.rows import TupleRow

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SnapshotSettings, SourceSettings
    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.snapshot.executors import Executors, ExecutorsAtHand
    from deltasmelt.bronze.snapshot.locks import Worker
    from deltasmelt.bronze.snapshot.remote_copy import Begin
    from deltasmelt.bronze.store.landing import Landing

_POLL_SECONDS: Final = 0.2


class ExecutorPool:
    """The source of executors for snapshots, if any are configured.

    Args:
        prepare: prepares executors; None without executors.
    """

    def __init__(
        self,
        prepare: ExecutorsAtHand | None,
        source: SourceSettings,
        settings: SnapshotSettings,
        landing: Landing,
    ) -> None:
        self._prepare = prepare
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
        """Start and check executors for large tables; return None if executors are unfit.

        The call precedes all locks, because an engine may start slowly. Executors live only while tables
        remain to be copied.

        Args:
            stack: exit stack that ends the executors.
            watcher: a session of the reader, on the server that the tasks must reach.
            stop: cancels the start; a cluster may have no free executor for a long time.
            fail: called with the error of each table that cannot be copied without executors.

        Raises:
            TransientError: executors are unavailable now, but may start later.
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
        """Start and check executors, as `begin`.

        Raises:
            SmeltError: executors are unavailable, or cannot copy.
        """
        assert self._prepare is not None  # noqa: S101 - `large` was empty
        progress, silence = self._landing.progress, self._source.timing.executors_silence
        with ExitStack() as stack:
            progress.set(copies_wait="large tables wait for executors")
            try:
                executors = stack.enter_context(self._prepare())
                uri, workers = self._landing.sink.uri, self._settings.workers
                with _cancelled_by(stop, executors, silence):
                    examine(executors, pinned(self._source, watcher.info), Location(uri))
            finally:
                progress.set(copies_wait="")

            def begin(holder: Worker, taken_at: datetime) -> RemoteCopy:
                source = pinned(self._source, holder.connection.info)
                return RemoteCopy(
                    executors, holder, source=source, taken_at=taken_at, uri=uri, workers=workers
                )

            yield begin

    def is_large(self, table: SourceTable) -> bool:
        """Check whether executors copy a table: executors exist, and the table has more than one range."""
        if self._prepare is None:
            return False
        rows = self._settings.chunk_rows
        return len(chunks_of([(table.table, table.pages)], table.rows_estimate, rows)) > 1


@contextmanager
def _cancelled_by(stop: threading.Event, executors: Executors, silence: float) -> Iterator[None]:
    """Cancel jobs of this block when `stop` is set, or after `silence` seconds.

    Raises:
        DefiniteError: ``executors-unfit``: the time was over.
    """
    over, late, deadline = threading.Event(), threading.Event(), time.monotonic() + silence

    def watch() -> None:
        while not over.wait(_POLL_SECONDS):
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
