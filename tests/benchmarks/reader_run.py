"""One measured run of the reader: `python -m tests.benchmarks.reader_run JSON`; prints its figures as JSON.

The measurement begins just before START_REPLICATION and ends when everything up to the given LSN is durable
in bronze and confirmed. Imports, connecting and creating the tables come before and are reported separately.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from deltasmelt.bronze.memory import choose_arrow_allocator
from deltasmelt.pipelines.without_pandas import load_pyarrow


def main() -> None:
    """Run the reader once."""
    start = time.monotonic()
    choose_arrow_allocator()  # as the command does
    load_pyarrow()
    from deltasmelt.bronze.config.sections import BronzeSettings, SnapshotSettings, SourceSettings  # noqa: PLC0415 - after pandas is hidden
    from deltasmelt.bronze.lake.location import Lake  # noqa: PLC0415
    from deltasmelt.bronze.lsn import Lsn  # noqa: PLC0415
    from deltasmelt.bronze.reader.reader import Reader  # noqa: PLC0415

    settings = json.loads(sys.argv[1])
    started: dict[str, float] = {}

    def reached(point: str) -> None:
        if point == "stream-starting":
            started.update(wall=time.monotonic(), cpu=time.process_time())

    reader = Reader(
        "benchmark",
        SourceSettings.model_validate(
            {"dsn": settings["dsn"], "slot": settings["slot"], "publication": "bench", **settings["rules"]}
        ),
        Lake(settings["lake"]),
        BronzeSettings(),
        SnapshotSettings(mode=settings["snapshots"]),
        reached=reached,
    )
    reader.run(until=Lsn(settings["until"]))
    counters = reader.progress.read()
    figures = {
        "wall": time.monotonic() - started["wall"],
        "cpu": time.process_time() - started["cpu"],
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "start_up": started["wall"] - start,
        "changes": counters["changes"],
        "commits": counters["commits"],
    }
    print(json.dumps(figures))  # noqa: T201 - the result


if __name__ == "__main__":
    main()
