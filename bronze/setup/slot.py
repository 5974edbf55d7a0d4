"""The replication slot: PostgreSQL's memory of how far the pipeline has read.

A slot is found or made; one that is not ours to read (another plugin, database, kind, or a reader on it) or
that has lost its log is refused with what to do. Nothing here moves or drops a slot.

Making a logical slot waits until every transaction that was running has ended: PostgreSQL must know a point
from which it has all of a transaction. An idle session with an open transaction can hold that up for hours,
and the wait itself shows nothing. So it runs in a thread of its own while this one looks who is in the way
and says so; after `wait` seconds it is given up.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import psycopg

from bronze.errors import DefiniteError, TransientError
from bronze.identifiers import quote_literal
from bronze.lsn import ZERO, Lsn
from bronze.postgres.blockers import REMEDY, running_transactions
from bronze.postgres.connection import connect, translated
from bronze.postgres.conninfo import describe
from bronze.postgres.error_translation import translate
from bronze.setup.failover import SINCE, making, mark, require_support

if TYPE_CHECKING:
    from collections.abc import Callable

    from bronze.config.sections import SourceSettings

PLUGIN: Final = "pgoutput"
_LOOK_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.25
_SILENT_SECONDS: Final = 15.0
"""A walsender of ours whose reader is silent for so long is ended; a living one answers every second."""
_MARGIN_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class SlotState:
    """A replication slot as pg_replication_slots shows it.

    Attributes:
        plugin: empty for a physical slot.
        database: empty for a physical slot.
        confirmed_flush: everything before it is confirmed; ZERO where there is none.
        restart_lsn: oldest log the server keeps for it; ZERO once that is gone.
        active_pid: backend that reads it.
        wal_status: ``reserved``, ``extended``, ``unreserved`` (about to be lost) or ``lost``.
        safe_wal_size: bytes that may still be written before it is in danger; None where there is no limit.
        created: made by this call.
        invalidation: why it can no longer be read; None where it can. Versions 14 to 16 say it less exactly.
        failover: standbys keep a copy of it (PostgreSQL 17 and later).
    """

    name: str
    plugin: str
    confirmed_flush: Lsn
    restart_lsn: Lsn
    active_pid: int | None
    wal_status: str
    safe_wal_size: int | None
    created: bool = False
    database: str = ""
    temporary: bool = False
    invalidation: str | None = None
    failover: bool = False


def read_slot(connection: psycopg.Connection[Any], name: str) -> SlotState | None:
    """The slot of that name on the whole server, or None."""
    version = connection.info.server_version
    if version >= 170000:
        invalidation = "invalidation_reason"
    elif version >= 160000:
        # 16 calls every invalidated slot conflicting; only one whose log is gone has lost its restart_lsn.
        invalidation = """CASE WHEN conflicting AND restart_lsn IS NOT NULL THEN 'conflict with recovery'
                               WHEN wal_status = 'lost' THEN 'wal_removed' END"""
    else:
        invalidation = "CASE WHEN wal_status = 'lost' THEN 'wal_removed' END"
    failover = "failover" if version >= SINCE else "false"
    row = connection.execute(
        f"""
        SELECT coalesce(plugin, ''), coalesce(database, ''), temporary, active_pid,
               confirmed_flush_lsn::text, restart_lsn::text, wal_status, safe_wal_size, {invalidation},
               {failover}
        FROM pg_replication_slots
        WHERE slot_name = %s
        """,
        [name],
    ).fetchone()
    if row is None:
        return None
    plugin, database, temporary, active_pid, confirmed, restart, wal_status, safe, reason, failover = row
    return SlotState(
        name=name,
        plugin=plugin,
        confirmed_flush=Lsn.parse(confirmed) if confirmed else ZERO,
        restart_lsn=Lsn.parse(restart) if restart else ZERO,
        active_pid=active_pid,
        wal_status=wal_status or "reserved",
        safe_wal_size=safe,
        database=database,
        temporary=temporary,
        invalidation=reason,
        failover=failover,
    )


def ensure_slot(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    *,
    patience: float = 10.0,
    ours: str | None = None,
    wait: float = 600.0,
    progress: Callable[[str], None] | None = None,
) -> SlotState:
    """The pipeline's slot, made where it is missing and may be made, and kept by standbys where asked for.

    Args:
        connection: in autocommit mode, outside a transaction.
        source: names the slot, and says by `manage` whether it may be made.
        patience: seconds to wait for another reader to let go; a killed one holds on for a while.
        ours: how the application name of this pipeline's readers begins. The walsender of one of them that
            went without a goodbye is waited for as long as the server waits itself, or ended where its
            silence shows.
        wait: seconds to wait for running transactions while the slot is made.
        progress: is told, now and then, what is being waited for.

    Raises:
        DefiniteError: the slot cannot be used, or not be made; with the remedy.
        TransientError: running transactions did not end within `wait`; they are named.
    """
    say = progress or _say_nothing
    created = False
    silence = _Silence()
    require_support(connection.info.server_version, source)
    started = time.monotonic()
    with translated(source):
        here = connection.execute("SELECT current_database()").fetchone()
        while True:
            slot = read_slot(connection, source.slot)
            if slot is None:
                if created:
                    raise _vanished(source)
                created = _make(connection, source, wait, say)
                continue
            problem = slot_problem(slot, source, here[0] if here else "")
            if problem is not None:
                raise problem
            if slot.active_pid is None:
                return replace(_kept(slot, source), created=created)
            deadline = started + patience
            if slot.confirmed_flush == ZERO:  # it is still being made, by another start or by hand
                deadline = started + wait
            elif ours is not None:
                deadline = max(deadline, silence.deadline(connection, slot.active_pid, ours))
            if time.monotonic() >= deadline:
                raise _in_use(connection, slot, source)
            say(f"waiting for backend {slot.active_pid} to release slot {source.slot}")
            time.sleep(_POLL_SECONDS)


def _kept(slot: SlotState, source: SourceSettings) -> SlotState:
    """The slot, kept by standbys where asked for."""
    if source.failover and not slot.failover:
        mark(source)
        slot = replace(slot, failover=True)
    return slot


class _Silence:
    """How long the reader behind a walsender of ours has been silent, by our own clock.

    A living reader of ours answers every second. ``reply_time`` is what *its* clock said then: on another
    machine that may be hours away, so one look tells nothing. It changes with each answer; what counts is
    that two looks found it changed, or how long it stays the same.
    """

    def __init__(self) -> None:
        self._seen: tuple[int, str | None] | None = None
        self._since = 0.0

    def deadline(self, connection: psycopg.Connection[Any], backend_pid: int, ours: str) -> float:
        """Until when to wait for the walsender, by the monotonic clock; one whose reader is gone is ended.

        The time of its last answer shows only to roles that may see it (pg_read_all_stats); the others wait
        until the server misses the reader itself.
        """
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
        now, before = time.monotonic(), self._seen
        if before != (backend_pid, reply):
            self._seen, self._since = (backend_pid, reply), now
            if before is not None and before[0] == backend_pid:
                return 0.0  # it answers
        if reply is None:
            return self._since + float(timeout) + _MARGIN_SECONDS if timeout else 0.0
        if now - self._since >= _SILENT_SECONDS:
            connection.execute("SELECT pg_terminate_backend(%s)", [backend_pid])
        return self._since + _SILENT_SECONDS + _MARGIN_SECONDS


def slot_problem(slot: SlotState, source: SourceSettings, database: str) -> DefiniteError | None:
    """Why this slot can never serve the pipeline as it is; None where it can. Pure.

    Args:
        slot: as read.
        source: whose slot it should be.
        database: name of the connected database.
    """
    drop = f"SELECT pg_drop_replication_slot({quote_literal(slot.name)});"
    rename = "choose another name for source.slot"
    if not slot.plugin:
        code, said, cure = "slot-physical", "is a physical slot, of a standby or a backup", rename
    elif slot.plugin != PLUGIN:
        code = "slot-wrong-plugin"
        said, cure = (
            f"uses plugin {slot.plugin}, not {PLUGIN}",
            f"{rename}, or drop it if nothing uses it: {drop}",
        )
    elif slot.database != database:
        code = "slot-other-database"
        said, cure = f"belongs to database {slot.database}, not {database}", rename
    elif slot.temporary:
        code, said, cure = "slot-temporary", "is a temporary slot of another session", rename
    elif slot.invalidation is not None or slot.wal_status == "lost":
        code = "slot-lost"
        reason = slot.invalidation or "wal_removed"
        said = f"is invalidated ({reason}): changes after {slot.confirmed_flush} are lost to it"
        cure = (
            f"{_invalidation_cure(slot.invalidation)}; then `smelt snapshot FILE --all` makes the slot anew "
            f"and takes every table again, deletes included (a pipeline that has read nothing yet: {drop})"
        )
    else:
        return None
    return DefiniteError(
        f"replication slot {slot.name} {said}", code=code, where=describe(source), remedy=cure
    )


def _invalidation_cure(reason: str | None) -> str:
    match reason:
        case "wal_level_insufficient":
            return "ALTER SYSTEM SET wal_level = logical; and restart PostgreSQL"
        case "idle_timeout":
            return "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();"
        case "rows_removed" | "conflict with recovery":
            return "read from the primary, or set hot_standby_feedback = on at the standby"
    return "ALTER SYSTEM SET max_slot_wal_keep_size = '<more>'; SELECT pg_reload_conf();"


def _in_use(connection: psycopg.Connection[Any], slot: SlotState, source: SourceSettings) -> DefiniteError:
    row = connection.execute(
        "SELECT application_name, coalesce(host(client_addr), 'a local socket'), backend_start::text "
        "FROM pg_stat_activity WHERE pid = %s",
        [slot.active_pid],
    ).fetchone()
    who = f" ({row[0] or 'no name'} from {row[1]}, since {row[2]})" if row else ""
    return DefiniteError(
        f"replication slot {slot.name} is in use by backend {slot.active_pid}{who}",
        code="slot-in-use",
        where=describe(source),
        remedy="stop the other reader: a slot serves one pipeline, started once; if its machine is gone: "
        f"SELECT pg_terminate_backend({slot.active_pid});",
    )


def _make(
    connection: psycopg.Connection[Any], source: SourceSettings, wait: float, say: Callable[[str], None]
) -> bool:
    """Make the slot; False where another session was first, whose slot it is then."""
    statement = making(source)
    if not source.manage:
        raise DefiniteError(
            f"replication slot {source.slot} does not exist",
            code="slot-missing",
            where=describe(source),
            remedy=f"run: {statement}; (or set source.manage: true)",
        )
    maker = _SlotMaker(connection, source, statement)
    maker.start()
    try:
        _watch(maker, source, wait, say)
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
        f"replication slot {source.slot} vanished as soon as it was made",
        code="slot-missing",
        where=describe(source),
        remedy="somebody drops it; find out who",
    )


class _SlotMaker(threading.Thread):
    """Runs the creating statement, so that the caller can look around meanwhile."""

    def __init__(self, connection: psycopg.Connection[Any], source: SourceSettings, statement: str) -> None:
        super().__init__(name="deltasmelt-slot", daemon=True)
        self.connection = connection
        self.error: psycopg.Error | None = None
        self._source = source
        self._statement = statement

    def run(self) -> None:
        try:
            self.connection.execute(self._statement.encode())
        except psycopg.Error as error:
            self.error = error

    def give_up(self) -> None:
        """Cancel the statement; PostgreSQL removes a slot that is not finished."""
        if self.is_alive():
            self.connection.cancel_safe(timeout=10)
        self.join()


def _watch(maker: _SlotMaker, source: SourceSettings, wait: float, say: Callable[[str], None]) -> None:
    """Wait for the slot; every few seconds say which transactions are in the way.

    Raises:
        TransientError: `wait` seconds have passed.
    """
    deadline = time.monotonic() + wait
    maker.join(min(_LOOK_SECONDS, wait))
    while maker.is_alive():
        blockers = _in_the_way(maker.connection.info.backend_pid, source)
        if time.monotonic() >= deadline:
            raise TransientError(
                f"replication slot {source.slot} could not be made within {wait:g} s, "
                f"because transactions are open: {blockers}",
                code="slot-waits-for-transactions",
                where=describe(source),
                remedy=REMEDY,
            )
        say(f"making slot {source.slot} waits for open transactions: {blockers}")
        maker.join(max(0.0, min(_LOOK_SECONDS, deadline - time.monotonic())))


def _in_the_way(own_pid: int, source: SourceSettings) -> str:
    with connect(source) as looking, translated(source):
        return running_transactions(looking, [own_pid])


def _say_nothing(_: str) -> None:
    """No one asked to be told."""
