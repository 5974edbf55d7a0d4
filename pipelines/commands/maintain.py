"""`smelt maintain`: maintain every table of silver and gold now, and print a line for each.

While a pipeline runs, the command alternates with the cycles, table by table. The reader maintains bronze;
with `bronze.retention` this command decides which changes the reader removes (`pipelines.runtime.retention`).
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.copies import remove_left
from deltasmelt.bronze.lake.delta import open_table
from deltasmelt.bronze.lake.spark_errors import cause_of
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.pipelines.commands.context import documents_to_join, require_lake, spark_for
from deltasmelt.pipelines.runtime.progress_text import maintenance_text
from deltasmelt.pipelines.runtime.retention import BronzeRetention, boundary_lines
from deltasmelt.pipelines.runtime.stages import maintenance
from deltasmelt.pipelines.terminal.failures import TABLES_STOPPED, Failure, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.pipelines.runtime.maintenance import MaintenanceResult
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output


def run_maintain(pipeline: Pipeline, output: Output) -> None:
    """Maintain all tables and print the results.

    Raises:
        SmeltError: the lake does not exist.
        Failure: some tables could not be maintained; the other tables are.
    """
    require_lake(pipeline)
    lake = pipeline.lake_address()
    for place in remove_left(lake):
        output.report(f"removed what a killed command left: {place}")
    control = ControlTables(lake)
    with spark_for(pipeline, output) as spark:
        documents = documents_to_join(pipeline, output)
        work = maintenance(spark, pipeline, control, ("silver", "gold"), documents)
        tables = work.all_tables()
        while (result := _next(tables, output)) is not None:
            if output.json:
                output.value(asdict(result))
            else:
                output.line(maintenance_text(result))
        if pipeline.bronze.retention is not None:
            for line in retention_lines(pipeline, control):
                output.report(line)
        for name, error in work.failed.items():
            output.report(without_secrets(f"{name}: {cause_of(error)}"))
    if work.failed:
        names = ", ".join(sorted(work.failed))
        raise Failure(f"maintenance failed: {names}", exit_code=TABLES_STOPPED)


def retention_lines(pipeline: Pipeline, control: ControlTables) -> Iterator[str]:
    """Yield the state of bronze after the decision of this maintenance."""
    lake = pipeline.lake_address()
    changes = open_table(lake.uri("bronze", CHANGES))
    if changes is not None:
        retention = BronzeRetention(pipeline, control)
        lines = boundary_lines(retention.boundary(changes, read_relations(lake), datetime.now(UTC)))
        yield f"bronze {next(lines)}"
        yield from lines


def _next(tables: Iterator[MaintenanceResult], output: Output) -> MaintenanceResult | None:
    with output.waiting("maintaining the tables of silver and gold"):
        return next(tables, None)
