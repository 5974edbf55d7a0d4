"""The order in which several processes run the test files.

Spark and its compiler keep both cores of a small machine busy, while tests of the reader mostly wait. So two
processes run the files with Spark, the longest first, and a third process runs the files without Spark.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    import pytest

SPARK_PROCESSES: Final = 2
"""Number of processes that begin with Spark's files; all further processes begin at the end of the queue."""

LONGEST_FIRST: Final = (
    "gold/test_cycle.py",
    "pipelines/proof/test_made_on_purpose.py",
    "pipelines/whole/test_end_to_end.py",
    "pipelines/quality/test_quality_run.py",
    "silver/fold/test_random_histories.py",
    "pipelines/runtime/test_maintenance.py",
    "pipelines/runtime/test_run.py",
    "gold/builder/test_silver_changes_shape.py",
    "pipelines/whole/test_object_store.py",
    "gold/builder/test_operation.py",
    "pipelines/proof/test_against_source.py",
    "silver/fold/test_versions.py",
    "pipelines/whole/test_spark_connect.py",
    "silver/fold/test_shapes_within_transactions.py",
    "silver/run/test_tables_stop_and_change.py",
    "pipelines/runtime/test_long_work.py",
    "pipelines/jobs/test_jobs_spark_submit.py",
    "pipelines/whole/test_odd_names.py",
    "pipelines/whole/test_work_in_catalog.py",
    "pipelines/runtime/test_old_timestamps.py",
    "pipelines/sql_shell/test_shell.py",
    "silver/run/test_taken_beside_silver.py",
    "gold/language/test_random_schemas.py",
    "pipelines/jobs/test_databricks_lake.py",
    "gold/builder/test_starts.py",
    "pipelines/runtime/test_bronze_retention.py",
    "pipelines/runtime/test_clustering.py",
    "silver/run/test_one_tables_trouble.py",
    "gold/language/test_language.py",
    "bronze/lake/catalog/test_named_tables.py",
    "pipelines/quality/test_quality_schedule.py",
    "silver/run/test_versions_killed.py",
    "silver/run/test_killed.py",
    "gold/language/test_every_type.py",
    "gold/builder/test_memory.py",
    "pipelines/runtime/test_maintenance_lag.py",
    "deltasmelt/test_open_lake.py",
    "pipelines/spark/test_fresh_sql.py",
    "pipelines/quality/test_quality_examples.py",
)
"""Files with Spark of half a minute and more, from the front of the queue."""

LONG_WITHOUT_SPARK: Final = (
    "pipelines/whole/test_secrets_unsaid.py",
    "bronze/reader/test_server_put_back.py",
    "bronze/reader/test_reader.py",
    "torture/test_line.py",
    "bronze/reader/test_watch.py",
    "bronze/postgres/test_connections.py",
    "bronze/drift/test_changed_shapes.py",
    "bronze/reader/test_faults.py",
    "bronze/snapshot/test_snapshot_unlogged.py",
    "bronze/store/test_leftovers.py",
    "bronze/store/test_sink.py",
    "bronze/reader/test_server_versions.py",
    "pipelines/demo/test_embedded.py",
    "bronze/checks/test_inspect.py",
    "bronze/drift/test_rows_without_events.py",
    "pipelines/terminal/test_mistakes.py",
    "bronze/reader/test_enumerated_faults.py",
    "pipelines/test_cli.py",
    "bronze/snapshot/test_snapshot.py",
    "pipelines/monitor/test_watched_run.py",
    "gold/drafting/test_propose.py",
)
"""The longest files without Spark, from the end of the queue."""


LONG_ALONE: Final = (
    "bronze/reader/test_faults.py",
    "bronze/store/test_sink.py",
    "bronze/pgoutput/test_decoder.py",
    "gold/drafting/test_propose.py",
    "bronze/lake/test_torn_log.py",
)
"""The longest files that need neither server nor JVM; `make check` begins with these files."""


_SPARK: Final = re.compile(r"\bmark\.spark\b|\bspark: SparkSession\b")
"""Words in the files whose tests start a JVM (the mark) or use their process's JVM (the fixture)."""


@cache
def needs_spark(file: Path) -> bool:
    """Check whether tests of a file start a JVM or use their process's JVM."""
    return _SPARK.search(file.read_text(encoding="utf-8")) is not None


def in_order(items: list[pytest.Item], *, from_both_ends: bool) -> list[pytest.Item]:
    """Order files with Spark, the longest first, before files without Spark, the longest last.

    Tests of a file keep their order.

    Args:
        from_both_ends: whether a process begins at the end of the queue. If not, the longest files come first
            in both groups.
    """
    folder = Path(__file__).parent
    front = {folder / name: place for place, name in enumerate(LONGEST_FIRST)}
    back = {folder / name: len(LONG_WITHOUT_SPARK) - place for place, name in enumerate(LONG_WITHOUT_SPARK)}
    alone = {folder / name for name in LONG_ALONE}

    def place(item: pytest.Item) -> tuple[bool, int]:
        if needs_spark(item.path):
            return False, front.get(item.path, len(front))
        return True, back.get(item.path, 0) if from_both_ends else -(item.path in alone)

    return sorted(items, key=place)


class FromBothEnds(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A scheduler of whole files from both ends of the queue.

    The first processes run files from the front, all further processes files from the end. A process without
    Spark ends when only files with Spark are left, to avoid one more JVM.
    """

    def _assign_work_unit(self, node: Any) -> None:
        if not _has_spark(node):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        if self.workqueue and not _has_spark(node) and any(map(_has_spark, self.nodes)):
            last = self.config.rootpath / next(reversed(self.workqueue))
            if needs_spark(last):
                if not node.shutting_down:
                    node.shutdown()
                return
        super()._reschedule(node)


def _has_spark(node: Any) -> bool:
    return int(node.gateway.id.removeprefix("gw")) < SPARK_PROCESSES
