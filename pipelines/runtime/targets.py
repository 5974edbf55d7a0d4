"""Where a run with an end ends: the source's log, bronze's frontier or silver's cut as it is now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bronze.errors import DefiniteError
from bronze.lake.control_tables import ControlTables
from bronze.store.position import read_position

if TYPE_CHECKING:
    from bronze.lake.location import Layer
    from bronze.lsn import Lsn
    from pipelines.settings import Pipeline


def head_of_source(pipeline: Pipeline) -> Lsn:
    """The server's present WAL position.

    Raises:
        SmeltError: the server cannot be asked.
    """
    from bronze.postgres.connection import (  # noqa: PLC0415 - silver and gold need no server
        connect,
        standby_without_slot,
        translated,
        written_end,
    )
    from bronze.postgres.conninfo import address_of  # noqa: PLC0415

    source = pipeline.source
    with connect(source) as connection, translated(source):
        row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
        if row is not None and row[0]:
            raise standby_without_slot(address_of(source))
        return written_end(connection)


def stage_goal(pipeline: Pipeline, layer: Layer) -> Lsn:
    """What a single stage has to reach: silver what bronze holds now, gold what silver holds now.

    Raises:
        DefiniteError: the layer before has nothing yet.
    """
    lake = pipeline.lake_address()
    if layer == "silver":
        position = read_position(lake)
        reached = None if position is None else position.frontier
    else:
        cut = ControlTables(lake).latest_cut("silver")
        reached = None if cut is None else cut.commit_lsn
    if reached is None:
        before = "bronze" if layer == "silver" else "silver"
        raise DefiniteError(
            f"{layer} has nothing to read: {before} is empty",
            code="layer-empty",
            where=str(pipeline.path),
            remedy=f"run `smelt {before} {pipeline.path.name} --until-caught-up` first, or `smelt run`",
        )
    return reached
