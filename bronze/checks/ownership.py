"""Gate for each command that writes, or compares lake and server: server, slot and lake belong together.

A pipeline file names a server, a slot and a lake, and each name may be wrong: a shell with the DSN of another
stage, a volume that is not mounted, two files with one slot. A mark, a row or a verdict from such a mix is
wrong permanently, because LSNs of two servers cannot be compared. Each command therefore calls `require_own`
on its first connection, before the command writes anything, and before Spark starts.

* **Server and database**: the lake's own properties name the server and the database
  (`bronze.store.ownership`).
* **Slot**: the server names the lake that reads the slot (`bronze.setup.slot_mark`). If the server names
  none, a lake with a position is compared with the slot by LSN (`bronze.stream.continuity`). A lake without a
  position may use a slot that has sent nothing yet.

The gate writes nothing, neither to the lake nor to the server. `read_claims` and `refuse_claims` are the two
halves of the gate, for `smelt status`, which shows the server even without the lake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.errors import DefiniteError, SmeltError
from deltasmelt.bronze.identifiers import quote_literal
from deltasmelt.bronze.postgres.connection import connect, identify, translated
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.setup.slot import read_slot
from deltasmelt.bronze.setup.slot_mark import lakes_of_slots, read_comment, sent_transactions
from deltasmelt.bronze.store.ownership import refuse_foreign, require_own_lake
from deltasmelt.bronze.store.position import position_of

if TYPE_CHECKING:
    import psycopg

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.postgres.connection import ServerIdentity

FOREIGN_CODES: Final = frozenset(
    {
        "lake-of-another-pipeline",
        "lake-of-another-server",
        "lake-of-another-database",
        "slot-of-another-lake",
    }
)
"""Codes of the gate's refusals; no refusal is recorded in the lake (`bronze.reader.pipeline_errors`)."""

_CONNECT_SECONDS: Final = "4"


@dataclass(frozen=True, slots=True)
class SlotClaims:
    """The server's record of the logical slot's reader."""

    # id of the lake that reads the slot; None without a record
    lake: str | None
    # number of transactions that the slot has sent
    sent: int


@dataclass(frozen=True, slots=True)
class ServerClaims:
    """All facts of a server that the gate compares with a lake."""

    identity: ServerIdentity
    # None if no logical slot has the pipeline's slot name
    slot: SlotClaims | None


def read_claims(connection: psycopg.Connection[Any], source: SourceSettings) -> ServerClaims:
    """Read the server's identity, and which lake reads the slot; call inside `translated`."""
    return ServerClaims(identify(connection), _slot_claims(connection, source))


def refuse_claims(claims: ServerClaims, source: SourceSettings, changes: Table | None, pipeline: str) -> None:
    """Raise like `require_own` for claims and a lake that the caller has read already.

    Raises:
        DefiniteError: the same errors as `require_own`.
    """
    if changes is not None:
        refuse_foreign(changes, pipeline, claims.identity)
    _refuse_slot(claims.slot, source, changes)


def require_own(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    lake: Lake,
    pipeline: str,
    *,
    again: bool = False,
) -> None:
    """Refuse a server, database or slot that the lake does not follow.

    `connection` is in autocommit mode; `require_own_lake` explains `again`.

    Raises:
        DefiniteError: ``lake-of-another-pipeline``, ``lake-of-another-server``, ``lake-of-another-database``,
            ``slot-of-another-lake``; as `require_own_lake`.
        SmeltError: the server does not answer, or the lake cannot be read.
    """
    with translated(source):
        claims = read_claims(connection, source)
        changes = require_own_lake(lake, pipeline, claims.identity, again=again)
        _refuse_slot(claims.slot, source, changes)


def refuse_others(source: SourceSettings, lake: Lake, pipeline: str) -> None:
    """Connect, and raise like `require_own`, for a command that can begin without the server.

    A server that does not answer is no error: the part of the command that needs the server passes the gate
    again.

    Raises:
        DefiniteError: one of `FOREIGN_CODES`.
    """
    try:
        with connect(source, connect_timeout=_CONNECT_SECONDS) as connection:
            require_own(connection, source, lake, pipeline)
    except SmeltError as error:
        if error.code in FOREIGN_CODES:
            raise


def require_own_slot(
    connection: psycopg.Connection[Any], source: SourceSettings, changes: Table | None
) -> None:
    """Refuse a logical slot that another lake reads; `slot_problem` judges other kinds of slots.

    `connection` is in autocommit mode. `changes` is an open `bronze.changes`, or None before bronze has
    begun.

    Raises:
        DefiniteError: ``slot-of-another-lake``.
    """
    _refuse_slot(_slot_claims(connection, source), source, changes)


def _slot_claims(connection: psycopg.Connection[Any], source: SourceSettings) -> SlotClaims | None:
    slot = read_slot(connection, source.slot)
    if slot is None or not slot.plugin:
        return None
    named = lakes_of_slots(read_comment(connection, source.publication)).get(source.slot)
    return SlotClaims(named, sent_transactions(connection, source.slot))


def _refuse_slot(slot: SlotClaims | None, source: SourceSettings, changes: Table | None) -> None:
    if slot is None:
        return
    lake = None if changes is None else str(changes.metadata().id)
    if slot.lake is not None:
        if slot.lake != lake:
            raise _of_another_lake(source, f"belongs to another lake ({slot.lake}); {_lake_text(lake)}")
    elif slot.sent and (changes is None or position_of(changes) is None):
        raise _of_another_lake(source, f"has sent {slot.sent} transactions to a reader; {_lake_text(None)}")


def _lake_text(lake_id: str | None) -> str:
    return "this lake is empty" if lake_id is None else f"this lake is {lake_id}"


def _of_another_lake(source: SourceSettings, reason: str) -> DefiniteError:
    return DefiniteError(
        f"replication slot {source.slot} {reason}",
        code="slot-of-another-lake",
        where=address_of(source),
        remedy="if this is the wrong lake (a volume that is not mounted, a wrong lake.path), correct "
        "lake.path; to use both lakes, choose another source.slot; if the other lake is no longer needed: "
        f"SELECT pg_drop_replication_slot({quote_literal(source.slot)});",
    )
