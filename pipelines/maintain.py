"""`smelt maintain`: the upkeep of every table of silver and gold, now; one line for each.

Beside a running pipeline it takes turns with the cycles, table by table. Bronze is left to its reader while
that runs; else files that bronze's own compaction gave up are removed, as of the control tables.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from bronze.control_tables import ControlTables
from bronze.errors import DefiniteError
from pipelines.lock import lake_lock
from pipelines.queries import require_lake, spark_for
from pipelines.stages import maintenance, upkeep_text

if TYPE_CHECKING:
    from bronze.lake import Lake, Layer
    from pipelines.output import Output
    from pipelines.settings import Pipeline


def run_maintain(pipeline: Pipeline, output: Output) -> None:
    """Maintain all tables and say what was done.

    Raises:
        SmeltError: there is nothing to maintain.
    """
    require_lake(pipeline)
    control = ControlTables(pipeline.lake_address())
    with spark_for(pipeline, output) as spark:
        for done in maintenance(spark, pipeline, control).all_tables():
            if output.json:
                output.value(asdict(done))
            else:
                output.line(upkeep_text(done))
    _given_up(pipeline.lake_address(), output)


def _given_up(lake: Lake, output: Output) -> None:
    """Files that the logs of bronze and control gave up."""
    from pipelines.maintenance import vacuum_given_up  # noqa: PLC0415

    tables: list[tuple[Layer, str]] = [("control", "cuts"), ("control", "runs"), ("control", "errors")]
    try:
        with lake_lock(lake, ("bronze",), command="smelt maintain"):
            _say_removed(vacuum_given_up(lake, "bronze", "changes"), "bronze", "changes", output)
    except DefiniteError:
        output.say("bronze: left to its reader, which runs")
    for layer, name in tables:
        _say_removed(vacuum_given_up(lake, layer, name), layer, name, output)


def _say_removed(count: int, layer: Layer, name: str, output: Output) -> None:
    if output.json:
        output.value({"layer": layer, "name": name, "removed_files": count})
    else:
        output.line(f"{layer}.{name}: removed {count} files")
