"""Executors copy the same rows as the reader's workers, whatever happens to attempts.

The executors are threads of this process; each function is pickled on its way, as in a real engine.
"""

from __future__ import annotations

import json
import pickle
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable
from pydantic import SecretStr
from pyspark import cloudpickle

from deltasmelt.bronze.config.sections import SnapshotSettings, SourceSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.place import Location
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.postgres.conninfo import conninfo, pinned
from deltasmelt.bronze.rules import hashed
from deltasmelt.bronze.snapshot.executors import _packages_report, _require_packages, examine
from deltasmelt.bronze.snapshot.range_task import (
    RangeTask,
    copy_ranges,
    require_files,
    results_of,
)
from deltasmelt.bronze.snapshot.remote_copy import _batches
from deltasmelt.bronze.snapshot.table_copy import Outcome
from deltasmelt.pipelines.spark.executors import python_error
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    bronze_rows,
    execute,
    read_all,
    read_snapshot,
)
from tests.bronze.running import Running
from tests.bronze.snapshot.test_snapshot import Altering, take
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL = SnapshotSettings(workers=3, chunk_rows=1000)
LACKS_OURS = """
Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times (TID 7) (10.0.0.7 executor 2):
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/serializers.py", line 460, in loads
    return cloudpickle.loads(obj, encoding=encoding)
ModuleNotFoundError: No module named 'bronze'

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""
"""Spark's error for a task on a machine without deltasmelt's packages."""
B_ID = "attrelid = 'b'::regclass AND attnum = 1"
RICH = Path(__file__).parents[2] / "pipelines" / "scenarios" / "values_of_every_type.sql"


class Here:
    """Executors in this process.

    Args:
        before: called before each range task, with the task.
        after: called with the task and the returned text.
    """

    def __init__(
        self,
        before: Callable[[RangeTask], object] = lambda _: None,
        after: Callable[[RangeTask, str], object] = lambda *_: None,
    ) -> None:
        self._before = before
        self._after = after
        self.tasks: list[RangeTask] = []
        self.at_once = self.most = 0
        self._lock = threading.Lock()

    def run(self, work: Callable[[], str]) -> str:
        sent: Callable[[], str] = pickle.loads(cloudpickle.dumps(work))  # type: ignore[no-untyped-call]  # noqa: S301 - ours
        task = sent.args[0] if isinstance(sent, partial) else None
        if not isinstance(task, RangeTask):
            return sent()
        with self._lock:
            self.tasks.append(task)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        try:
            self._before(task)
            results = sent()
            self._after(task, results)
        finally:
            with self._lock:
                self.at_once -= 1
        return results

    def cancel(self) -> None:
        """Ignore the call: tasks in this process are short."""

    @contextmanager
    def ready(self) -> Iterator[Here]:
        yield self


def on_disk(lake_path: str) -> set[str]:
    return {file.name for file in Path(lake_path, "bronze", "changes").iterdir() if file.is_file()}


def assert_no_stray(lake_path: str) -> None:
    file_names = {uri.rpartition("/")[2] for uri in DeltaTable(f"{lake_path}/bronze/changes").file_uris()}
    assert on_disk(lake_path) == file_names


def rows_without_times(lake_path: str) -> list[tuple[Any, ...]]:
    return [
        (row["op"], row["table_name"], row["seq"], row["columns"], row["new"])
        for row in sorted(bronze_rows(lake_path), key=lambda row: (row["table_name"], row["seq"]))
    ]


def test_executor_rows_match_reader_workers_despite_repeated_tasks(
    source: SourceSettings, lake_path: str, tmp_path: Path
) -> None:
    execute(
        source,
        *RICH.read_text().partition("--- step")[0].replace("\n\n\n", "\n").split(";\n"),
        "INSERT INTO typed (id, t) SELECT n, repeat(md5(n::text), n % 90) FROM generate_series(10, 4000) n",
        "CREATE TABLE large (id int PRIMARY KEY, t text)",
        "ALTER TABLE large ALTER t SET STORAGE EXTERNAL",
        "INSERT INTO large SELECT n, repeat(n::text, 3000) FROM generate_series(1, 60) n",
        "CREATE TABLE parted (id int PRIMARY KEY, t text) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_a PARTITION OF parted FOR VALUES FROM (0) TO (3000)",
        "CREATE TABLE parted_b PARTITION OF parted FOR VALUES FROM (3000) TO (9000)",
        "INSERT INTO parted SELECT n, 'p' || n FROM generate_series(1, 6000) n",
        "CREATE TABLE hidden (id int PRIMARY KEY)",
        "INSERT INTO hidden SELECT generate_series(1, 4000)",
        "ANALYZE",
    )
    local = str(tmp_path / "local")
    take(source, local, settings=SMALL)
    helped = Here(before=copy_ranges)  # an attempt whose result is lost
    outcome = take(source, lake_path, settings=SMALL, executors=helped.ready)
    assert outcome.failed == []
    assert {task.relation.table.name for task in helped.tasks} >= {"typed", "parted", "hidden"}
    assert len(helped.tasks) > 8
    assert helped.most <= SMALL.workers
    assert rows_without_times(lake_path) == rows_without_times(local)
    assert_bronze_equals_source(source, lake_path, "public.typed", "public.large", "public.parted")
    assert_no_stray(lake_path)
    rules = {
        "columns": {"public.parted": {"t": "hash"}},
        "where": {"public.parted": "parted.id < 4000 -- of both partitions"},
        "hash_key": SecretStr("k" * 32),
    }
    ruled, locally = source.model_copy(update=rules), str(tmp_path / "ruled")
    take(ruled, locally, settings=SMALL)
    take(ruled, str(tmp_path / "helped"), settings=SMALL, executors=Here().ready)
    rows = rows_without_times(str(tmp_path / "helped"))
    assert rows == rows_without_times(locally)
    parted = [new for op, name, _, _, new in rows if name == "parted" and op == "snapshot"]
    assert len(parted) == 3999
    assert ["77", hashed("p77", b"k" * 32)] in parted


def test_table_awaited_by_alter_is_copied_by_holder(source: SourceSettings, lake_path: str) -> None:
    """A session waits to alter the table, so the session with the lock copies it."""
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 9000)")
    execute(source, "ANALYZE t")
    altering = Altering(source, "snapshot-exported")
    helped = Here()
    take(source, lake_path, settings=SMALL, reached=altering, executors=helped.ready)
    altering.done()
    assert helped.tasks
    assert_bronze_equals_source(source, lake_path, "public.t")
    assert_no_stray(lake_path)


def test_rejected_table_fails_alone_and_its_files_vanish(source: SourceSettings, lake_path: str) -> None:
    execute(
        source,
        "CREATE TABLE a (id int PRIMARY KEY)",
        "INSERT INTO a SELECT generate_series(1, 5000)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "INSERT INTO b SELECT generate_series(1, 5000)",
        "ANALYZE",
    )
    rounds = threading.Event()

    def breaks(task: RangeTask, _: str) -> None:
        if task.relation.table.name == "b" and not rounds.is_set():
            rounds.set()
            execute(source, f"UPDATE pg_attribute SET attname = 'gone' WHERE {B_ID}")

    outcome = Outcome()
    take(source, lake_path, settings=SMALL, executors=Here(after=breaks).ready, outcome=outcome)
    assert [table.name for table in outcome.copied] == ["a"]
    assert [(error.table.name, error.code) for error in outcome.failed] == [("b", "server-error")]
    assert_no_stray(lake_path)


def test_snapshot_of_ended_holder_is_replaced(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 9000)")
    execute(source, "ANALYZE t")
    ended: list[str] = []

    def end_holder(_: RangeTask) -> None:
        if len(ended) < 1:
            ended.append("once")
            execute(
                source,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name = 'deltasmelt snapshot' AND state = 'idle in transaction'",
                "SELECT pg_sleep(0.3)",
            )

    with pytest.raises(TransientError) as caught:
        take(source, lake_path, settings=SMALL, executors=Here(before=end_holder).ready)
    assert caught.value.code == "snapshot-gone"
    assert_no_stray(lake_path)
    ended.clear()
    read_all(source, lake_path, snapshot=SMALL, executors=Here(before=end_holder).ready)
    assert ended == ["once"]
    assert_bronze_equals_source(source, lake_path, "public.t")
    assert ControlTables(Lake(lake_path)).open_errors() == []
    assert_no_stray(lake_path)


def test_unexamined_executor_fails_only_its_own_table(source: SourceSettings, lake_path: str) -> None:
    execute(
        source,
        *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in "abcde"),
        *(f"INSERT INTO {name} SELECT generate_series(1, 5000)" for name in "abcde"),
        "ANALYZE",
    )

    class OneOfThem(Here):
        def run(self, work: Callable[[], str]) -> str:
            task = work.args[0] if isinstance(work, partial) else None
            if not isinstance(task, RangeTask):
                return super().run(work)
            match task.relation.table.name:
                case "a":
                    raise TransientError(python_error(LACKS_OURS), code="x")
                case "b":
                    return super().run(partial(copy_ranges, replace(task, versions={"pyarrow": "1.0"})))
                case "c":
                    dsn = SecretStr("host=127.0.0.1 sslcert=/nowhere/cert")
                    settings = SourceSettings(dsn=dsn, slot="s", publication="p")
                    return super().run(partial(copy_ranges, replace(task, source=settings)))
                case "d":
                    answer = super().run(work)
                    for name in [part["path"] for result in results_of(answer) for part in result.parts]:
                        Path(lake_path, "bronze", "changes", name).unlink()
                    return answer
                case _:
                    return super().run(work)

    outcome = take(source, lake_path, settings=SMALL, executors=OneOfThem().ready)
    assert [table.name for table in outcome.copied] == ["e"]
    messages = {error.table.name: error.message for error in outcome.failed}
    assert {error.code for error in outcome.failed} == {"executors-unfit"}
    assert "No module named 'bronze'" in messages["a"]
    assert f"the executor {socket.gethostname()} has pyarrow" in messages["b"]
    assert "/nowhere/cert (source.sslcert)" in messages["c"]
    assert "the reader cannot find a file" in messages["d"]
    assert_bronze_equals_source(source, lake_path, "public.e")
    assert_no_stray(lake_path)


def test_without_executors_large_tables_wait_while_streaming(source: SourceSettings, lake_path: str) -> None:
    source = source.with_timing(Timing(catalog_poll=0.3))
    execute(
        source,
        "CREATE TABLE large (id int PRIMARY KEY)",
        "INSERT INTO large SELECT generate_series(1, 5000)",
        "CREATE TABLE small (id int PRIMARY KEY)",
        "INSERT INTO small VALUES (1)",
        "ANALYZE",
    )
    control, present = ControlTables(Lake(lake_path)), threading.Event()

    @contextmanager
    def perhaps() -> Iterator[Here]:
        if not present.is_set():
            raise ConfigurationError("no Java", code="java-missing", where="JAVA_HOME", remedy="get it")
        yield Here()

    read_all(source, lake_path, snapshot=SMALL, executors=perhaps)
    (error,) = control.open_errors()
    assert (error.name, error.code, error.remedy) == ("public.large", "executors-unfit", "get it")
    assert error.message == "JAVA_HOME: no Java"
    assert_bronze_equals_source(source, lake_path, "public.small")
    with Running(source, lake_path, snapshot=SMALL, executors=perhaps) as running:
        execute(source, "INSERT INTO small VALUES (2)")
        wait_for(lambda: [row["new"] for row in bronze_rows(lake_path) if row["op"] == "insert"] == [["2"]])
        present.set()
        wait_for(lambda: read_snapshot(Lake(lake_path), TableName("public", "large")) is not None)
        assert running.error is None
    assert control.open_errors() == []
    assert_bronze_equals_source(source, lake_path, "public.small", "public.large")


TWO_TABLES = [
    "CREATE TABLE large (id int PRIMARY KEY)",
    "INSERT INTO large SELECT generate_series(1, 5000)",
    "CREATE TABLE small (id int PRIMARY KEY)",
    "INSERT INTO small VALUES (1)",
    "ANALYZE",
]


class Silent(Here):
    """Executors that do not answer some functions until cancelled.

    Args:
        of: checks whether a function gets no answer.
    """

    def __init__(self, of: Callable[[Callable[[], str]], bool]) -> None:
        super().__init__()
        self._of = of
        self._cancelled = threading.Event()

    def run(self, work: Callable[[], str]) -> str:
        if not self._of(work):
            return super().run(work)
        assert self._cancelled.wait(60)
        raise TransientError("it was cancelled", code="snapshot-task-failed")

    def cancel(self) -> None:
        self._cancelled.set()


def test_small_tables_are_copied_whatever_becomes_of_executors(
    source: SourceSettings, lake_path: str
) -> None:
    execute(source, *TWO_TABLES)

    class Failing(Here):
        def run(self, _: Callable[[], str]) -> str:
            raise TransientError("killed for its memory", code="snapshot-task-failed")

    outcome = Outcome()
    with pytest.raises(TransientError, match="killed for its memory"):
        take(source, lake_path, settings=SMALL, executors=Failing().ready, outcome=outcome)
    assert [table.name for table in outcome.copied] == ["small"]
    assert_bronze_equals_source(source, lake_path, "public.small")


def test_missing_executors_are_error_of_large_tables(source: SourceSettings, lake_path: str) -> None:
    execute(source, *TWO_TABLES)
    source = source.with_timing(Timing(executors_silence=0.5))
    outcome = take(source, lake_path, settings=SMALL, executors=Silent(lambda _: True).ready)
    assert [table.name for table in outcome.copied] == ["small"]
    (error,) = outcome.failed
    assert (error.table.name, error.code) == ("large", "executors-unfit")
    assert "within 0.5 s" in error.message
    assert_no_stray(lake_path)


def test_round_without_progress_releases_snapshot(
    source: SourceSettings, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltasmelt.bronze.snapshot.remote_copy._TICK", 0.1)
    execute(source, *TWO_TABLES)
    source = source.with_timing(Timing(executors_silence=0.6))

    def ranges(work: Callable[[], str]) -> bool:
        return isinstance(work, partial) and isinstance(work.args[0], RangeTask)

    outcome = Outcome()
    with pytest.raises(TransientError, match="no executor has copied any row") as caught:
        take(source, lake_path, settings=SMALL, executors=Silent(ranges).ready, outcome=outcome)
    assert caught.value.code == "snapshot-task-failed"
    assert [table.name for table in outcome.copied] == ["small"]

    # The time between two sessions of tasks counts as silence, and a busy machine needs some.
    source = source.with_timing(Timing(executors_silence=2.0))

    def rests(task: RangeTask) -> None:  # longer than that, at the server
        with connect(source, application_name=f"deltasmelt snapshot task {task.round}"):
            time.sleep(4)

    outcome = take(source, lake_path, settings=SMALL, executors=Here(before=rests).ready)
    assert {table.name for table in outcome.copied} == {"small", "large"}
    assert_bronze_equals_source(source, lake_path, "public.large", "public.small")
    assert_no_stray(lake_path)


def test_obstacles_to_executor_copies_are_reported_before_locks(
    source: SourceSettings, lake_path: str, tmp_path: Path
) -> None:
    (tmp_path / "lake").mkdir()
    destination = Location(str(tmp_path / "lake"))

    class OtherMachine(Here):
        def run(self, work: Callable[[], str]) -> str:
            answer = super().run(work)
            for file in (tmp_path / "lake").iterdir():
                file.unlink()
            return answer

    def refused(executors: Here, given: SourceSettings) -> SmeltError:
        with pytest.raises(SmeltError) as caught:
            examine(executors, given, destination)
        return caught.value

    examine(Here(), source, destination)
    error = refused(OtherMachine(), source)
    assert (error.code, str(tmp_path / "lake") in error.message) == ("executors-unfit", True)

    dsn = conninfo(source, sslrootcert="/nowhere/root.crt")
    error = refused(Here(), SourceSettings(dsn=SecretStr(dsn), slot="s", publication="p"))
    assert error.code == "executors-unfit"
    assert "/nowhere/root.crt" in error.message
    assert socket.gethostname() in error.message

    away = SourceSettings(dsn=SecretStr("host=127.0.0.1 port=1 user=u dbname=d"), slot="s", publication="p")
    error = refused(Here(), away)
    assert (error.code, socket.gethostname() in error.message) == ("executors-unfit", True)
    assert "Connection refused" in error.message
    assert list((tmp_path / "lake").iterdir()) == []


def test_exact_server_is_named_without_environment(
    source: SourceSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The address for executors names the same server without any environment variable."""
    assert source.dsn is not None
    own_parameters = psycopg.conninfo.conninfo_to_dict(source.dsn.get_secret_value())
    passwords = tmp_path / "pass"
    passwords.write_text("*:*:*:*:by file\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    monkeypatch.setenv("PGDATABASE", str(own_parameters["dbname"]))
    monkeypatch.setenv("PGUSER", str(own_parameters["user"]))
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=7MB")
    host, port = str(own_parameters["host"]), own_parameters.get("port", 5432)
    several = SourceSettings(
        host=f"127.0.0.1,{host}",
        port=f"1,{port}",
        target_session_attrs="primary",
        slot="s",
        publication="p",
    )
    with connect(several) as connection:
        sent = pickle.loads(pickle.dumps(pinned(several, connection.info)))  # noqa: S301 - ours
    for name in ("PGPASSFILE", "PGDATABASE", "PGUSER", "PGOPTIONS"):
        monkeypatch.delenv(name)
    sent_parameters = psycopg.conninfo.conninfo_to_dict(sent.dsn.get_secret_value())
    assert (sent_parameters["host"], str(sent_parameters["port"]), sent_parameters["dbname"]) == (
        host,
        str(port),
        own_parameters["dbname"],
    )
    assert sent_parameters["password"] == "by file"
    assert "by file" not in repr(sent)
    with connect(sent) as connection:
        row = connection.execute("SELECT current_setting('work_mem'), current_setting('TimeZone')").fetchone()
    assert row == ("7MB", "UTC")


def test_missing_or_different_executor_packages_are_named() -> None:
    parsed = json.loads(
        _packages_report(("deltasmelt", "psycopg", "pyarrow", "deltalake", "no_such_package"))()
    )
    with pytest.raises(DefiniteError, match="no_such_package: ModuleNotFoundError") as caught:
        _require_packages(parsed)
    assert caught.value.code == "executors-unfit"
    del parsed["failed"]["no_such_package"]
    _require_packages(parsed)
    parsed["found"]["pyarrow"] = "1.0"
    with pytest.raises(DefiniteError, match=r"has pyarrow 1.0, the reader \d"):
        _require_packages(parsed)


def test_jobs_hold_more_ranges_if_ranges_are_many() -> None:
    def sizes(count: int, workers: int) -> list[int]:
        return [len(batch) for batch in _batches(list(range(count)), workers)]  # type: ignore[arg-type]

    assert sizes(0, 4) == []
    assert sizes(9, 4) == [1] * 9
    assert sizes(100, 4) == [3] * 33 + [1]
    assert set(sizes(10_000, 4)) == {16}
    assert sum(sizes(10_007, 4)) == 10_007


def test_a_system_store_of_authorities_is_no_file() -> None:
    require_files(
        SourceSettings(dsn=SecretStr("sslrootcert=system sslmode=verify-full"), slot="s", publication="p")
    )
