"""Create the replication slot, or take over the existing slot from a reader that no longer reads.

The creation of a logical slot waits until every running transaction has ended: PostgreSQL needs a position
with each later transaction entirely in the log. An idle session with an open transaction can delay the
creation for hours, and the waiting statement reports nothing. The statement therefore runs in a separate
thread, while the caller's thread finds and reports the blocking sessions. After `Timing.slot_transactions`
the caller gives up, and within `Timing.copy_silence` after an answer that a dead connection lost.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import psycopg

from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.postgres.blockers import REMEDY, running_transactions
from deltasmelt.bronze.postgres.connection import abandon, connect, translated, within
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.postgres.error_translation import translate
from deltasmelt.bronze.postgres.liveness import CopyLine
from deltasmelt.bronze.setup.failover import enable_failover, require_support, slot_statement
from deltasmelt.bronze.setup.slot import SlotState, read_slot, slot_problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.config.timing import Timing


CHECKING: Final = "deltasmelt check"
STARTING_OVER: Final = "deltasmelt snapshot"
"""Application names of sessions that hold the slot for a comparison of logs, until the comparison's end."""


def ensure_slot(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    *,
    ours: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> SlotState:
    """Return the pipeline's slot; create a missing slot, and mark the slot for standbys, if configured.

    Args:
        connection: in autocommit mode, outside a transaction.
        source: names the slot; `manage` decides whether the slot may be created. `timing` bounds the wait for
            another reader, for running transactions during the creation, and for a comparison of logs.
        ours: prefix of the application name of this pipeline's readers. If a killed reader left its
            walsender, the function waits as long as the server itself, or ends a provably silent walsender.
        progress: receives at intervals a text about the wait.

    Raises:
        DefiniteError: the slot cannot be used or created; with the remedy.
        TransientError: running transactions did not end in time; the message names them.
    """
    report = progress or _ignore
    created = False
    timing = source.timing
    silence = _Silence(timing)
    require_support(connection.info.server_version, source)
    started = time.monotonic()
    with translated(source):
        row = connection.execute("SELECT current_database()").fetchone()
        while True:
            slot = read_slot(connection, source.slot)
            if slot is None:
                if created:
                    raise _vanished(source)
                created = _make(connection, source, report)
                continue
            problem = slot_problem(slot, source, row[0] if row else "")
            if problem is not None:
                raise problem
            if slot.active_pid is None:
                return _marked_for_standbys(slot, source)
            deadline = started + timing.slot_release
            # Another start, or a person, is still creating the slot; or a comparison of logs holds the slot.
            if slot.confirmed_flush == ZERO or is_comparing(connection, slot.active_pid):
                deadline = started + timing.slot_transactions
            elif ours is not None:
                deadline = max(deadline, silence.deadline(connection, slot.active_pid, ours))
            if time.monotonic() >= deadline:
                raise _in_use(connection, slot, source)
            report(f"waiting for backend {slot.active_pid} to release slot {source.slot}")
            time.sleep(timing.slot_poll)


def _marked_for_standbys(slot: SlotState, source: SourceSettings) -> SlotState:
    """Return the slot, marked for standbys if configured."""
    if source.failover and not slot.failover:
        enable_failover(source)
        slot = replace(slot, failover=True)
    return slot


class _Silence:
    """The silence of the reader behind a walsender of this pipeline, by the local clock.

    A living reader answers every second. ``reply_time`` has the time of the *reader's* clock, which may be
    hours away on another machine, so a single read proves nothing. ``reply_time`` changes with each answer.
    The proof is therefore a change between two reads, or the time without a change.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._last_reply: tuple[int, str | None] | None = None
        self._since = 0.0

    def deadline(self, connection: psycopg.Connection[Any], backend_pid: int, ours: str) -> float:
        """Return the end of the wait by the monotonic clock; end a walsender without reader."""
        row = connection.execute(
            """
            SELECT r.reply_time::text,
                   (SELECT setting::float8 / 1000 FROM pg_settings WHERE name = 'wal_sender_timeout')
            FROM pg_stat_activity a
            LEFT JOIN pg_stat_replication r ON r.pid = a.pid
            WHERE a.pid = %s AND starts_with(a.application_name, %s) AND a.usename = current_user
            """,
            [backend_pid, ours],
        ).fetchone()
        if row is None:
            return 0.0
        reply, timeout = row
        now, last_reply = time.monotonic(), self._last_reply
        if last_reply != (backend_pid, reply):
            self._last_reply, self._since = (backend_pid, reply), now
            if last_reply is not None and last_reply[0] == backend_pid:
                return 0.0  # the reader answers
        # Only roles with pg_read_all_stats see the time of the last answer. A role without this right waits
        # until the server itself detects the reader's absence.
        if reply is None:
            return self._since + float(timeout) + self._timing.walsender_end if timeout else 0.0
        if now - self._since >= self._timing.reader_silence:
            connection.execute("SELECT pg_terminate_backend(%s)", [backend_pid])
        return self._since + self._timing.reader_silence + self._timing.walsender_end


def is_comparing(connection: psycopg.Connection[Any], backend_pid: int) -> bool:
    """Check whether a walsender serves a comparison of logs (`bronze.stream.same_log`), and no reader."""
    row = connection.execute(
        "SELECT FROM pg_stat_activity WHERE pid = %s AND application_name = ANY (%s)",
        [backend_pid, [CHECKING, STARTING_OVER]],
    ).fetchone()
    return row is not None


def _in_use(connection: psycopg.Connection[Any], slot: SlotState, source: SourceSettings) -> DefiniteError:
    row = connection.execute(
        "SELECT application_name, coalesce(host(client_addr), 'a local socket'), backend_start::text "
        "FROM pg_stat_activity WHERE pid = %s",
        [slot.active_pid],
    ).fetchone()
    session = f" ({row[0] or 'no name'} from {row[1]}, since {row[2]})" if row else ""
    return DefiniteError(
        f"replication slot {slot.name} is in use by backend {slot.active_pid}{session}",
        code="slot-in-use",
        where=address_of(source),
        remedy="stop the other reader: a slot serves one pipeline, started once; if its machine no longer "
        f"runs: SELECT pg_terminate_backend({slot.active_pid});",
    )


def _make(connection: psycopg.Connection[Any], source: SourceSettings, report: Callable[[str], None]) -> bool:
    """Create the slot; return False if another session was first and therefore owns the slot."""
    statement = slot_statement(source)
    if not source.manage:
        raise DefiniteError(
            f"replication slot {source.slot} does not exist",
            code="slot-missing",
            where=address_of(source),
            remedy=f"run: {statement}; (or set source.manage: true)",
        )
    maker = _SlotMaker(connection, source, statement)
    maker.start()
    try:
        _watch(maker, source, report)
    except BaseException:
        maker.give_up()
        raise
    if isinstance(maker.error, psycopg.errors.DuplicateObject):
        return False
    if maker.error is not None:
        raise translate(maker.error, source) from maker.error
    return True


def _vanished(source: SourceSettings) -> TransientError:
    return TransientError(
        f"replication slot {source.slot} was dropped immediately after its creation",
        code="slot-missing",
        where=address_of(source),
        remedy="find the process that drops the slot, and stop it",
    )


class _SlotMaker(threading.Thread):
    """A thread that runs the creating statement, so that the caller can search for blockers meanwhile."""

    def __init__(self, connection: psycopg.Connection[Any], source: SourceSettings, statement: str) -> None:
        super().__init__(name="deltasmelt-slot", daemon=True)
        self.connection = connection
        self.error: psycopg.Error | None = None
        self._source = source
        self._statement = statement

    def run(self) -> None:
        timing = self._source.timing
        try:
            with within(timing.slot_transactions + timing.cancel, self.connection):
                self.connection.execute(self._statement.encode())
        except psycopg.Error as error:
            self.error = error

    def give_up(self) -> None:
        """Cancel the statement; PostgreSQL removes an unfinished slot."""
        seconds = self._source.timing.cancel
        if self.is_alive():
            with suppress(psycopg.Error, OSError):
                self.connection.cancel_safe(timeout=seconds)
            self.join(seconds)
        if self.is_alive():
            # The server did not accept the request, or did not act on it. The server detects the connection's
            # end within `Timing.client_check`.
            abandon(self.connection)
        self.join()


def _watch(maker: _SlotMaker, source: SourceSettings, report: Callable[[str], None]) -> None:
    """Wait for the slot; every few seconds report the transactions that delay the creation.

    Raises:
        TransientError: the time for running transactions is over, or the connection is dead.
    """
    wait, notice = source.timing.slot_transactions, source.timing.wait_notice
    deadline = time.monotonic() + wait
    line = CopyLine(source, maker.connection)
    maker.join(min(notice, wait))
    while maker.is_alive():
        # A backend with nothing to do has sent its answer, which a dead connection lost.
        line.nothing_came()
        blockers = _in_the_way(maker.connection.info.backend_pid, source)
        if time.monotonic() >= deadline:
            raise TransientError(
                f"replication slot {source.slot} could not be created within {wait:g} s, because "
                f"transactions are open: {blockers}",
                code="slot-waits-for-transactions",
                where=address_of(source),
                remedy=REMEDY,
            )
        report(f"creating slot {source.slot} waits for open transactions: {blockers}")
        maker.join(max(0.0, min(notice, deadline - time.monotonic())))


def _in_the_way(own_pid: int, source: SourceSettings) -> str:
    with connect(source, patience=source.timing.copy_lookout) as connection, translated(source):
        return running_transactions(connection, [own_pid])


def _ignore(_: str) -> None:
    """Discard the text: no caller wants reports of progress."""
