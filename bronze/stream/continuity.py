"""Check that a started stream continues exactly where bronze ends. Pure.

PostgreSQL silently moves a START_REPLICATION before the slot's `confirmed_flush_lsn` forward to this LSN. A
START_REPLICATION beyond the end of the log simply waits. Both cases would lose changes silently. So the
reader reads the slot again *after* the start, when no other client can move the slot, and compares the slot
with bronze's mark.

PostgreSQL docs: https://www.postgresql.org/docs/current/protocol-replication.html (START_REPLICATION).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError

if TYPE_CHECKING:
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.setup.slot import SlotState
    from deltasmelt.bronze.store.position import Position

_ANEW: Final = (
    "the changes in between are lost: `smelt snapshot FILE --all` resnapshots every table, deletes "
    "included, and continues from there"
)


def check_start(
    position: Position, slot: SlotState | None, backend_pid: int, wal_end: Lsn, *, name: str, where: str
) -> None:
    """Compare a stream just started at `position.confirm` with its slot.

    Args:
        slot: the slot as read after the start; None without a slot.

    Raises:
        DefiniteError: ``slot-gap``, ``slot-lost``, ``server-behind``: changes are missing, or would be.
    """
    if slot is None or slot.active_pid != backend_pid:
        raise DefiniteError(
            f"replication slot {name} was dropped, or another reader took the slot, during the start of the "
            "stream",
            code="slot-lost",
            where=where,
            remedy=f"bronze contains everything before {position.confirm}; {_ANEW}",
        )
    if slot.confirmed_flush > position.confirm:
        missing = slot.confirmed_flush - position.confirm
        raise DefiniteError(
            f"changes are missing: bronze ends at {position.confirm}, slot {name} begins at "
            f"{slot.confirmed_flush} (up to {missing} bytes of log between them); the slot was recreated, "
            "or another reader advanced the slot",
            code="slot-gap",
            where=where,
            remedy=_ANEW,
        )
    if wal_end < position.confirm:
        raise DefiniteError(
            f"the server's log ends at {wal_end}, before the end of bronze at {position.confirm}: the "
            "server was restored from a backup, or a standby that lagged behind was promoted",
            code="server-behind",
            where=where,
            remedy="bronze contains changes that this server never had; if this is the right server now, let "
            f"its log grow beyond {position.confirm}, then `smelt snapshot FILE --all` resnapshots every "
            "table; or `smelt drop FILE`, move the lake away (or set another lake.path) and start again",
        )


def refuse_behind(end: Lsn, newest: Lsn, *, where: str) -> None:
    """Refuse a server whose log does not reach beyond all changes that bronze holds.

    Raises:
        DefiniteError: ``server-behind``.
    """
    # Silver orders by LSN, and a snapshot replaces only changes before the snapshot's LSN.
    if end <= newest:
        raise DefiniteError(
            f"the server's log ends at {end}, before the end of bronze at {newest}; new changes would get "
            "positions before existing changes",
            code="server-behind",
            where=where,
            remedy=f"let the server's log grow beyond {newest} first (each SELECT pg_switch_wal(); advances "
            "the log to the next segment), or `smelt drop FILE`, move the lake away (or set another "
            "lake.path) and start again",
        )


def slot_gone(position: Position, *, name: str, where: str) -> DefiniteError:
    """Return the error for a position of bronze in a stream without a slot."""
    return DefiniteError(
        f"replication slot {name} no longer exists; bronze ends at {position.confirm}, and all later "
        "changes are missing",
        code="slot-lost",
        where=where,
        remedy=_ANEW,
    )
