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
    Spark ends when only files with Spark are left, to avoid one more JVM. The process that replaces a dead
    process with Spark runs files from the front, too.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._with_spark: set[Any] = set()

    def add_node(self, node: Any) -> None:
        if len(self._with_spark) < SPARK_PROCESSES:
            self._with_spark.add(node)
        super().add_node(node)

    def remove_node(self, node: Any) -> str | None:
        """Return the test that ended its process, and queue the process's further files.

        The rest of that test's own file does not run: a fixture that hangs would hang for each test. xdist
        queues every file that the process ever had, and a process that gets a finished file waits for ever.
        """
        self._with_spark.discard(node)
        files: dict[str, list[str]] = {
            file: pending
            for file, tests in self.assigned_work.pop(node).items()
            if (pending := [test for test, finished in tests.items() if not finished])
        }
        if not files:
            return None
        died, *_ = files.pop(next(iter(files)))
        for file, pending in files.items():
            self.workqueue[file] = dict.fromkeys(pending, False)
            self.workqueue.move_to_end(file, last=not self._needs_spark(file))
        for other in self.nodes:
            self._reschedule(other)
        return died

    def _needs_spark(self, file: str) -> bool:
        return needs_spark(self.config.rootpath / file)

    def _assign_work_unit(self, node: Any) -> None:
        if node not in self._with_spark:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        if node not in self.registered_collections:
            return  # a replacement that still collects; `schedule` follows
        only_spark = self.workqueue and self._needs_spark(next(reversed(self.workqueue)))
        if only_spark and self._with_spark and node not in self._with_spark:
            if not node.shutting_down:
                node.shutdown()
            return
        super()._reschedule(node)
        # A process runs its last test only after it has got a next test, or has been told to end.
        if not node.shutting_down and self._pending_of(self.assigned_work[node]) == 1:
            self._reschedule(node)
