"""How much CPU a reader and a run need to open a lake: prints seconds as JSON, for `bench_month`.

The loading of code, connections to the server and Spark's start have the same length on any day, and do not
count.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.postgres.connection import connect, identify
from deltasmelt.bronze.store.relations import RelationsWatch, ShapeLog
from deltasmelt.bronze.store.sink import DeltaSink
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.schema.catalog import silver_catalog


def main() -> None:
    """Open the lake of a pipeline file, as a reader and as silver and gold do at their start."""
    pipeline = load_pipeline(Path(sys.argv[1]))
    lake = pipeline.lake_address()
    with connect(pipeline.source) as connection:
        identity = identify(connection)
    start = time.process_time()
    sink = DeltaSink(lake, pipeline.pipeline, identity)
    shapes = ShapeLog(sink.relations(), sink.add_relations)
    sink.tables.needing_copy(sorted(shapes.tables()))
    opened = time.process_time()
    control, log = ControlTables(lake), SilverLog(lake)
    cuts = [control.latest_cut(layer) for layer in ("silver", "gold")]
    control.open_errors()
    for table in silver_catalog(RelationsWatch(lake).read(), pipeline.silver).values():
        log.read(table.name)
        control.last_named("silver", table.name)
    assert None not in cuts
    ended = time.process_time()
    json.dump({"reader's start CPU s": opened - start, "run's start CPU s": ended - opened}, sys.stdout)


if __name__ == "__main__":
    main()
