"""Commits of `bench_month`, compressed: a day has a tenth of the commits, and so have counts of commits.

The clock jumps over a day, and so over its commits. Periods by the wall clock stay as they are. Whatever
deltasmelt does after a number of commits or files would be due after weeks of the simulation only, and each
such measure would rise until then, as it does within the first hours of a real pipeline.
"""

from __future__ import annotations

from datetime import timedelta

from deltasmelt.bronze.lake import control_table
from deltasmelt.bronze.lake.place import Place
from deltasmelt.bronze.store import catalog_log, sink


def compress_commits() -> None:
    """Let this process tidy after a tenth of the commits, and remove results of quality after five days."""
    Place.checkpoint_interval = 5
    sink._TIDY_EVERY = 100  # type: ignore[misc]
    for module in (control_table, catalog_log, sink):
        module.COMPACT_ABOVE = 20  # type: ignore[attr-defined]


def compress_maintenance() -> None:
    """Do the same for the constants of modules that need Spark, which the reader must not load."""
    from deltasmelt.pipelines.quality import results  # noqa: PLC0415 - see above
    from deltasmelt.pipelines.runtime import maintenance, table_files  # noqa: PLC0415

    compress_commits()
    maintenance._COMMITS = 2  # type: ignore[misc]
    table_files._MANY = 6  # type: ignore[misc]
    results.KEPT, results._TIDY_EVERY = timedelta(days=5), 3  # type: ignore[misc]
