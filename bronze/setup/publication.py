"""The publication: the tables in the stream. The reader creates and extends the publication if allowed.

A publication that lacks a table, an operation or a column silently loses changes. The reader therefore
compares the present publication (direct members, whole schemas, all tables; column lists and row filters)
with the pipeline's needs.

**A table that loses its replica identity** while published is removed at the next poll, because PostgreSQL
refuses the application's own UPDATEs and DELETEs. The table returns, with a new snapshot, once it has a
replica identity. A publication that deltasmelt did not create keeps its tables, because another subscriber
may read the publication.

**Rules** of the pipeline file for columns and rows become the table's column list and row filter
(`bronze.catalog.ruled_tables`). PostgreSQL has no statement that changes both, so one transaction removes the
table and adds it again: no other session sees the publication without the table. Its new row in the catalog
requests a snapshot (`bronze.drift.membership`), which a longer list and a wider filter need.

**Locks.** Adding a table takes a lock on the table. VACUUM, CREATE INDEX CONCURRENTLY and similar commands
may delay this lock for hours. A table whose lock is not granted does not delay other tables
(`_add_in_parts`).

PostgreSQL docs: https://www.postgresql.org/docs/current/sql-createpublication.html and
https://www.postgresql.org/docs/current/sql-alterpublication.html.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import psycopg

from deltasmelt.bronze.catalog.publication import (
    MADE,
    NOT_PRINTED,
    OPERATIONS,
    Publication,
    is_made_by_us,
    read_publication,
)
from deltasmelt.bronze.catalog.row_filters import invalid_filter
from deltasmelt.bronze.errors import DefiniteError, SmeltError, TableError, TransientError
from deltasmelt.bronze.identifiers import TableName, quote_identifier, quote_literal
from deltasmelt.bronze.postgres.connection import lock_timeout
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.postgres.error_translation import tables_changed, translate
from deltasmelt.bronze.postgres.lock_holders import END_HOLDER, LET_GO, describe_holder, describe_holders
from deltasmelt.bronze.setup.slot_mark import read_comment

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from deltasmelt.bronze.catalog.publication import Wanted
    from deltasmelt.bronze.config.sections import SourceSettings

_LOGGER = logging.getLogger("deltasmelt.reader")

_ADDING: Final = (
    "ShareUpdateExclusiveLock",
    "ShareLock",
    "ShareRowExclusiveLock",
    "ExclusiveLock",
    "AccessExclusiveLock",
)
"""Lock modes that conflict with adding a table."""
_ATTEMPTS: Final = 5
_NO_WAIT: Final = 0.01
"""Seconds for a lock after the time for waits is over: only a free lock is taken."""


def publication_statements(
    publication: Publication | None,
    name: str,
    tables: Sequence[TableName],
    *,
    via_root: bool = True,
    wanted: Mapping[TableName, Wanted] = MappingProxyType({}),
) -> list[str]:
    """Return the SQL that makes `publication` carry `tables` as demanded; empty if complete. Pure.

    Args:
        publication: the present publication; None if missing.
        via_root: whether partitions must appear under their root's name; irrelevant without partitioned
            tables.
        wanted: the memberships of tables with rules.
    """
    quoted = quote_identifier(name)

    def clause(table: TableName) -> str:
        return wanted[table].clause(table) if table in wanted else f"ONLY {table.quoted}"

    if publication is None:
        # With `ONLY`, children of table inheritance stay separate tables. Partitions follow their root
        # anyway, and `publish_via_partition_root` publishes them under the root's name.
        members = ", ".join(map(clause, sorted(tables)))
        target = f" FOR TABLE {members}" if tables else ""
        return [f"CREATE PUBLICATION {quoted}{target} WITH (publish_via_partition_root = true);"]
    statements = []
    settings = []
    if not publication.operations.issuperset(OPERATIONS):
        settings.append(f"publish = '{', '.join(OPERATIONS)}'")
    if via_root and not publication.via_root:
        settings.append("publish_via_partition_root = true")
    if settings:
        statements.append(f"ALTER PUBLICATION {quoted} SET ({', '.join(settings)});")
    missing = sorted(table for table in tables if publication.member(table) is None)
    if missing:
        members = ", ".join(map(clause, missing))
        statements.append(f"ALTER PUBLICATION {quoted} ADD TABLE {members};")
    for table in sorted(wanted.keys() & set(tables)):
        member = publication.member(table)
        if member is not None and not wanted[table].is_met(member):
            statements += wanted[table].statements(name, table)
    return statements


def ensure_publication(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    tables: Sequence[TableName],
    locked: list[TableError] | None = None,
    *,
    without: Sequence[TableName] = (),
    wanted: Mapping[TableName, Wanted] = MappingProxyType({}),
    corrected: Collection[TableName] = (),
) -> list[str]:
    """Make the publication carry `tables` with all operations, through partition roots.

    Args:
        connection: a connection in autocommit mode.
        source: names the publication; `manage` decides whether the reader may change it.
        tables: the selected tables with a usable key; the reader publishes no other table.
        locked: receives an error of each table that cannot be added now because of another session's lock;
            without `locked` a single such table is an error of all.
        without: tables that the publication blocks; a table that cannot be removed stays
            (`bronze.catalog.problems.of_identity`).
        wanted: the memberships that rules demand, for tables of `tables` (`bronze.catalog.ruled_tables`).
        corrected: tables with rules that do not join now; if they are members, the rules hold nevertheless.

    Returns:
        The SQL that was executed; empty without a change.

    Raises:
        DefiniteError: a change is necessary, but `manage` is false or a privilege is missing; with the SQL.
        TransientError: a lock was not granted in time; a table was dropped meanwhile.
    """
    timing = source.timing
    seconds = timing.publication_lock if locked is None else timing.members_lock
    # First remove the tables whose UPDATEs and DELETEs fail because of the publication, each in a separate
    # transaction, because an application is waiting. Writes in the meantime are not lost: the snapshot after
    # the table's return contains them.
    executed = _taken_out(connection, source, without) if without and source.manage else []
    corrected = set(corrected).difference(tables)
    ruled = {table: wanted[table] for table in sorted({*tables, *corrected}) if table in wanted}
    if ruled and source.manage:
        tables = [table for table in tables if table not in ruled]
        executed += ensure_publication(connection, source, tables, locked)
        return executed + _set_rules(connection, source, ruled, locked, corrected)
    try:
        return executed + _repeated(connection, source, tables, seconds, wanted)
    except TransientError as error:
        if locked is None or not isinstance(error.__cause__, _LOCKED):
            raise
    # First the publication's own settings: every statement on the publication waits for its lock.
    executed += _repeated(connection, source, (), timing.publication_lock)
    return executed + _add_in_parts(connection, source, tables, locked)


def _set_rules(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    ruled: Mapping[TableName, Wanted],
    refused: list[TableError] | None,
    corrected: Collection[TableName],
) -> list[str]:
    """Make the publication carry tables by their rules, with one transaction for each table.

    PostgreSQL may refuse a filter, or the table is locked. Then the table has an error and is not carried,
    because the publication could send more than the rules allow. If it only sends fewer columns, the table
    is carried. All waits for locks together take `Timing.members_in_parts` at most.
    """
    executed: list[str] = []
    timing, waited = source.timing, 0.0
    publication = read_publication(
        connection, source.publication, [wanted.relation_id for wanted in ruled.values()]
    )
    # In random order no table is always after the end of the waits.
    for table, wanted in random.sample(list(ruled.items()), len(ruled)):
        member = None if publication is None else publication.member(table)
        if wanted.is_met(member) if member is not None else table in corrected:
            continue
        seconds = timing.member_lock if waited < timing.members_in_parts else _NO_WAIT
        started = time.monotonic()
        try:
            executed += _repeated(connection, source, [table], seconds, {table: wanted})
        except SmeltError as error:
            cause = error.__cause__
            if refused is not None and isinstance(error, TableError):
                refused.append(error)
                continue
            if refused is None or not isinstance(cause, psycopg.Error):
                raise
            if isinstance(cause, _LOCKED) and member is not None and wanted.contains(member):
                # A new column waits for the list: the stream and the snapshot continue without the column.
                _LOGGER.info(
                    "the column list of %s in publication %s waits for a lock", table, source.publication
                )
            elif isinstance(cause, _LOCKED):
                refused.append(_not_set_yet(table, source, describe_holder(connection, table, _ADDING)))
            elif isinstance(cause, psycopg.errors.InsufficientPrivilege):
                code, remedy = "publication-rules", error.remedy
                refused.append(TableError(table, error.message, code=code, remedy=remedy))
            elif wanted.where and (cause.sqlstate or "").startswith(_REFUSED):
                reason = cause.diag.message_detail or cause.diag.message_primary or str(cause)
                refused.append(invalid_filter(table, reason))
            else:
                raise
        finally:
            waited += time.monotonic() - started
    return executed


def _not_read_yet(table: TableName, source: SourceSettings) -> TableError:
    return TableError(
        table,
        f"publication {source.publication} cannot get the rules of source.columns for the table: the server "
        "cannot print the publication's own row filter of the table yet",
        code="publication-rules",
        remedy="nothing to do: the reader retries; the role needs the privilege TEMPORARY on the database",
    )


def _not_set_yet(table: TableName, source: SourceSettings, holder: str) -> TableError:
    return TableError(
        table,
        f"publication {source.publication} cannot get the rules of source.columns and source.where for the "
        f"table yet: the table is locked by {holder}",
        code="publication-rules",
        remedy=f"nothing to do: the reader retries after the lock is released; {END_HOLDER}",
    )


def _taken_out(
    connection: psycopg.Connection[Any], source: SourceSettings, tables: Sequence[TableName]
) -> list[str]:
    """Remove tables from a publication of deltasmelt's own; skip failures; return the executed statements.

    All removals together take `Timing.members_in_parts` at most.
    """
    publication, name = read_publication(connection, source.publication), source.publication
    if publication is None or not publication.ours:
        return []
    executed, deadline = [], time.monotonic() + source.timing.members_in_parts
    for table in filter(publication.may_lose, sorted(tables)):
        if time.monotonic() >= deadline:
            break
        statement = f"ALTER PUBLICATION {quote_identifier(name)} DROP TABLE ONLY {table.quoted};"
        try:
            with connection.transaction():
                connection.execute(lock_timeout(source.timing.member_lock).encode())
                connection.execute(statement.encode())
        except psycopg.Error as error:
            if connection.broken:
                raise translate(error, source) from error
            # A table that is locked, or that the server refuses to remove, stays until the next poll: its
            # error states that the publication still carries the table.
            _LOGGER.warning("%s cannot be removed from publication %s yet: %s", table, name, error)
        else:
            _LOGGER.warning(
                "%s is removed from publication %s, which made UPDATEs and DELETEs of the table fail",
                table,
                name,
            )
            executed.append(statement)
    return executed


def _add_in_parts(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    tables: Sequence[TableName],
    locked: list[TableError],
) -> list[str]:
    """Add tables, some of them locked; record tables that cannot be added now in `locked`.

    Each statement is a separate transaction; all statements together take `Timing.members_in_parts` at most.
    Among thousands of tables, one locked table therefore costs a few statements, and many locked tables cost
    at most `Timing.members_in_parts`. After a failure the added tables remain, and the next poll finds them.
    """
    publication = read_publication(connection, source.publication)
    missing = [table for table in sorted(tables) if publication is None or publication.member(table) is None]
    holders = describe_holders(connection, missing, _ADDING)
    one_by_one = [[table] for table in holders]
    # Each locked table gets a short attempt: an autovacuum gives way to a waiting session. In random order no
    # table is always last.
    random.shuffle(one_by_one)
    # The first group has all tables without a visible lock; after a failure the group is split in halves.
    groups = deque([[table for table in missing if table not in holders], *one_by_one])
    timing = source.timing
    deadline = time.monotonic() + timing.members_in_parts
    executed: list[str] = []
    while groups:
        group = groups.popleft()
        if time.monotonic() >= deadline:
            locked += [_locked(table, source, holders.get(table, LET_GO)) for table in group]
            continue
        try:
            seconds = timing.member_lock if len(group) == 1 else timing.members_lock
            executed += _repeated(connection, source, group, seconds)
        except TransientError as error:
            if not isinstance(error.__cause__, _LOCKED):
                raise
            if len(group) == 1:
                locked.append(_locked(group[0], source, describe_holder(connection, group[0], _ADDING)))
            else:
                half = len(group) // 2
                groups.extendleft([group[half:], group[:half]])
    return executed


_LOCKED: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
_REFUSED: Final = ("0A", "22", "42")
"""Prefixes of SQLSTATEs of a row filter that PostgreSQL does not accept."""


def _repeated(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    tables: Sequence[TableName],
    seconds: float,
    wanted: Mapping[TableName, Wanted] = MappingProxyType({}),
) -> list[str]:
    for attempt in range(_ATTEMPTS):
        try:
            return _change(connection, source, tables, seconds, wanted)
        except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation) as error:
            # Another session was first; the next attempt reads its result.
            if attempt == _ATTEMPTS - 1:
                raise translate(error, source) from error
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            happened = "a table was dropped while the publication was changed"
            raise tables_changed(happened, error, source) from error
        except psycopg.Error as error:
            raise translate(error, source) from error
    raise AssertionError("unreachable")


def _change(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    tables: Sequence[TableName],
    seconds: float,
    wanted: Mapping[TableName, Wanted],
) -> list[str]:
    name, printed = source.publication, [membership.relation_id for membership in wanted.values()]
    publication = read_publication(connection, name, printed)
    # If the reader may not change the publication, each partitioned table has an error of its own.
    via_root = source.manage and (publication is None or publication.owned)
    if not publication_statements(publication, name, tables, via_root=via_root, wanted=wanted):
        return []
    with connection.transaction():
        connection.execute(lock_timeout(seconds).encode())
        # Serializes concurrent starts. A change by any other session raises "already exists", and `_repeated`
        # reads the publication again.
        connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"deltasmelt publication {name}"]
        )
        publication = read_publication(connection, name, printed)
        statements = publication_statements(publication, name, tables, via_root=via_root, wanted=wanted)
        unread = [table for table in tables if table in wanted and wanted[table].printed == NOT_PRINTED]
        if statements and unread and source.manage:
            raise _not_read_yet(unread[0], source)
        if statements and not source.manage:
            raise _unmanaged(publication, source, statements)
        for statement in statements:
            try:
                connection.execute(statement.encode())
            except psycopg.errors.InsufficientPrivilege as error:
                raise _not_permitted(error, source, statements) from error
        _require_met(connection, name, tables, wanted)
        # In the same transaction as CREATE: deltasmelt never drops a publication without this mark, as an
        # earlier publication, or a publication that someone recreates.
        if publication is None and statements:
            mark = f"COMMENT ON PUBLICATION {quote_identifier(name)} IS {quote_literal(MADE)}"
            connection.execute(mark.encode())
    return statements


def _require_met(
    connection: psycopg.Connection[Any],
    name: str,
    tables: Sequence[TableName],
    wanted: Mapping[TableName, Wanted],
) -> None:
    """Raise the error of a table whose stored membership differs from the demanded one; undoes the change.

    Otherwise each poll would write the membership again, and each time a snapshot would follow.
    """
    ruled = {table: wanted[table] for table in tables if table in wanted}
    if not ruled:
        return
    publication = read_publication(connection, name, [item.relation_id for item in ruled.values()])
    for table, item in ruled.items():
        member = None if publication is None else publication.member(table)
        stored = None if member is None else member.row_filter
        if item.printed not in (stored, NOT_PRINTED):
            raise invalid_filter(table, f"PostgreSQL stores {item.printed} as {stored}")
        if member is None or not item.is_met(member):
            raise TableError(
                table,
                "the publication's column list would not be the list that source.columns demands: a column "
                "has changed meanwhile",
                code="publication-rules",
                remedy="nothing to do: the reader compares again at its next poll",
            )


def is_ours(connection: psycopg.Connection[Any], name: str) -> bool:
    """Check whether deltasmelt created the publication; releases before the mark left no mark."""
    return is_made_by_us(read_comment(connection, name))


def _locked(table: TableName, source: SourceSettings, holder: str) -> TableError:
    return TableError(
        table,
        f"the table cannot join publication {source.publication} yet: it is locked by {holder}",
        code="table-locked",
        remedy="nothing to do: the reader retries and adds the table after the lock is released; "
        f"{END_HOLDER}",
    )


def _unmanaged(
    publication: Publication | None, source: SourceSettings, statements: Sequence[str]
) -> DefiniteError:
    missing = publication is None
    return DefiniteError(
        f"publication {source.publication} "
        + ("does not exist" if missing else "does not contain all tables that the pipeline reads"),
        code="publication-missing" if missing else "publication-incomplete",
        where=address_of(source),
        remedy=f"run, as owner of the tables: {' '.join(statements)} (or set source.manage: true)",
    )


def _not_permitted(error: psycopg.Error, source: SourceSettings, statements: Sequence[str]) -> DefiniteError:
    return DefiniteError(
        f"the role may not create or change the publication: {error.diag.message_primary}",
        code="publication-privilege",
        where=address_of(source),
        remedy=f"as owner of the tables and of the publication, run: {' '.join(statements)} (CREATE "
        "PUBLICATION needs CREATE on the database; adding a table needs ownership of publication and table)",
    )
