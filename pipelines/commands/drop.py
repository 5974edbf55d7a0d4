"""`smelt drop`: remove the pipeline's slot and publication at the source; the lake stays unchanged.

A slot without a reader keeps the server's log for ever, so an abandoned pipeline must drop its slot. The lake
remembers its position. A pipeline started again later finds the gap and reports the gap instead of skipping
the missing changes.

**The slot.** The command drops the slot named in the pipeline file, if the slot is a logical pgoutput slot in
this database and no other lake reads the slot (`bronze.checks.ownership`). After a removal of the lake, the
command refuses a slot with sent changes; the message contains the statement to drop the slot by hand.

**The publication.** A publication may be older than the pipeline and have other subscribers. The command
drops only a publication with deltasmelt's mark (`bronze.setup.publication.is_ours`) and without the name of
another existing slot in the mark.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.catalog.publication import read_publication
from deltasmelt.bronze.checks.ownership import require_own, require_own_slot
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.identifiers import quote_identifier, quote_literal
from deltasmelt.bronze.lake.delta import exists
from deltasmelt.bronze.postgres.connection import connect, translated
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.setup.publication import is_ours
from deltasmelt.bronze.setup.slot import read_slot, slot_problem
from deltasmelt.bronze.setup.slot_mark import lakes_of_slots, read_comment
from deltasmelt.pipelines.runtime.locks import lake_lock
from deltasmelt.pipelines.terminal.failures import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import psycopg

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.setup.slot import SlotState
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output

_NOT_OURS: Final = (
    "this pipeline did not create the publication, or an early release of deltasmelt created it"
)


def run_drop(pipeline: Pipeline, output: Output, *, confirm: bool = False) -> None:
    """Drop the slot and deltasmelt's publication; with ``source.manage: false`` print the statements instead.

    With `confirm` ask a person at a terminal first; without a terminal the command then drops nothing.

    Raises:
        SmeltError: the pipeline runs, a process reads the slot, or the slot belongs to somebody else; the
            server refuses, or the lake's store does.
        Failure: nobody agreed, so nothing was dropped.
    """
    source, lake = pipeline.source, pipeline.lake_address()
    lake_exists = exists(lake)
    with ExitStack() as opened:
        opened.enter_context(
            lake_lock(lake, ("bronze",), command="smelt drop") if lake_exists else nullcontext()
        )
        with output.waiting("reading slot and publication"):
            connection = opened.enter_context(connect(source))
            opened.enter_context(translated(source))
            _require_own(connection, pipeline, exists=lake_exists)
        statements, foreign_statement = [], None
        slot = read_slot(connection, source.slot)
        if slot is not None:
            _require_droppable(slot, source, connection)
            statements.append(f"SELECT pg_drop_replication_slot({quote_literal(source.slot)})")
        if read_publication(connection, source.publication) is not None:
            statement = f"DROP PUBLICATION {quote_identifier(source.publication)}"
            other_slots = _other_slots(connection, source)
            if (is_ours(connection, source.publication) and not other_slots) or not source.manage:
                statements.append(statement)
            else:
                foreign_statement = statement
        if confirm and source.manage and statements:
            _require_agreement(statements, address_of(source), output)
        for statement in statements:
            if source.manage:
                connection.execute(statement.encode())
            output.line(statement + ";")
    if foreign_statement is not None:
        # Also for publications made by releases before the mark: the statement is for a person.
        output.line(foreign_statement + ";")
        output.report(
            f"publication {source.publication} is not changed: "
            + (
                f"slot {', '.join(other_slots)} of another pipeline reads the publication"
                if other_slots
                else _NOT_OURS
            )
            + "; if no other subscriber uses the publication, run the statement above yourself"
        )
    elif not statements:
        output.report("neither slot nor publication exists; nothing to do")
    elif not source.manage:
        output.report("source.manage is false: nothing was changed; run the statements above yourself")


def _require_own(connection: psycopg.Connection[Any], pipeline: Pipeline, *, exists: bool) -> None:
    """Refuse slots of other pipelines; open nothing of a missing lake."""
    if exists:
        require_own(connection, pipeline.source, pipeline.lake_address(), pipeline.pipeline)
    else:
        require_own_slot(connection, pipeline.source, None)


def _other_slots(connection: psycopg.Connection[Any], source: SourceSettings) -> list[str]:
    """Return the other slots whose pipelines read the publication into a lake of deltasmelt."""
    slots = lakes_of_slots(read_comment(connection, source.publication)).keys() - {source.slot}
    return [slot for slot in sorted(slots) if read_slot(connection, slot) is not None]


def _require_droppable(slot: SlotState, source: SourceSettings, connection: psycopg.Connection[Any]) -> None:
    """Refuse a slot with a reader, or of a kind made by no pipeline on this database.

    Raises:
        DefiniteError: ``slot-physical``, ``slot-wrong-plugin``, ``slot-other-database``, ``slot-temporary``;
            ``slot-in-use``.
    """
    problem = slot_problem(slot, source, connection.info.dbname)
    if problem is not None and problem.code != "slot-lost":
        raise problem
    if slot.active_pid is not None:
        raise DefiniteError(
            f"slot {source.slot} is being read by backend {slot.active_pid}",
            code="slot-in-use",
            where=address_of(source),
            remedy="stop the pipeline that reads the slot first",
        )


def _require_agreement(statements: Sequence[str], where: str, output: Output) -> None:
    """Raise a Failure unless a person at a terminal agrees."""
    question = (
        f"at {where}: {'; '.join(statements)};\nAfter this, the lake can continue only with a new snapshot "
        "of every table."
    )
    if not output.agreed(question):
        raise Failure("nothing was dropped; without a terminal, use `smelt drop FILE --yes`")
