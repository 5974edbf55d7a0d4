"""`smelt verify --repair`: tables that differ are taken again, and carried to silver and gold.

A resnapshot replaces a table's rows in one cut, also those that no longer exist, while the stream goes on.
It is requested as by `smelt snapshot`. Where a pipeline runs, its stages carry the rows on. Where none
does, this process runs them until they have.

Of a table that keeps deleted rows or versions, a resnapshot ends what the source lacks and adds what differs.
It cannot tell which of two rows of one key is wrong. Such tables are derived from bronze again
(`smelt rebuild FILE silver TABLE`), as far as bronze reaches back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bronze.errors import DefiniteError
from pipelines.commands.run import run_layers
from pipelines.commands.snapshot import run_snapshot
from pipelines.terminal.failures import TABLES_STOPPED, Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bronze.identifiers import TableName
    from bronze.lake.location import Layer
    from pipelines.settings import Pipeline
    from pipelines.terminal.output import Output


def repair(pipeline: Pipeline, tables: Sequence[TableName], output: Output, *, command: str) -> None:
    """Take tables again, and carry them on.

    Args:
        pipeline: the pipeline.
        tables: of the source.
        output: reports what happens.
        command: who we are, for the lake's lock.

    Raises:
        SmeltError: the server or the lake cannot be reached.
        Failure: some table cannot be taken.
    """
    # What is between double quotes means itself and is no pattern.
    names = [table.quoted for table in tables]
    run_snapshot(pipeline, names, output, every=False, wait=True, command=command)
    layers: tuple[Layer, ...] = ("silver", "gold") if pipeline.gold.documents else ("silver",)
    for layer in layers:
        try:
            run_layers(pipeline, output, layers=[layer], until_caught_up=True, command=command)
        except Failure as failure:
            if failure.exit_code != TABLES_STOPPED:
                raise
            output.say(str(failure))  # others may stand still; these are compared once more
        except DefiniteError as error:
            if error.code != "already-running":
                raise
            output.say(f"the running pipeline carries {', '.join(map(str, tables))} to {layer}")
