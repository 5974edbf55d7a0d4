"""The fate of sessions at a server that soon ends idle sessions, observed by a separate process.

The process writes its observations as JSON. A process has one kind of Spark session, and a test run's session
has a JVM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.sql import SparkSession as PySpark
from pyspark.sql.connect.session import SparkSession as RemoteSession

import deltasmelt
from deltasmelt.bronze.lake.catalog.sql import failures
from deltasmelt.pipelines.commands.context import spark_for
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.jvm_death import death
from deltasmelt.pipelines.spark.session import spark_session, stop_session
from deltasmelt.pipelines.terminal.output import SilentOutput
from deltasmelt.silver.spark import connect
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.connect import Connect
from tests.pipelines.sql_shell.small_lake import FIRST, make_small_lake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

IDLE_SECONDS: Final = 6
SETTINGS: Final = {
    "spark.connect.session.manager.defaultSessionTimeout": f"{IDLE_SECONDS}s",
    "spark.connect.session.manager.maintenanceInterval": "500ms",
}
_LONG: Final = "SELECT count(*) FROM range(1000000000000) AS a WHERE hash(a.id) = 1"
_ORDERS: Final = "SELECT count(*) FROM silver.orders"


def outcome_of(work: Callable[[], Any]) -> str:
    """Return the result of the work: its value, or the error's code or condition."""
    try:
        return str(work())
    except deltasmelt.SmeltError as error:
        return error.code
    except Exception as error:  # noqa: BLE001 - whatever it is, the test says whether it is right
        condition: Any = getattr(error, "getCondition", lambda: None)()
        return condition or f"{type(error).__name__}: {error}"


def one_of(frame: DataFrame) -> Any:
    return frame.collect()[0][0]


def answer_of(session: SparkSession) -> str:
    return outcome_of(lambda: one_of(session.sql("SELECT 1")))


@contextmanager
def other_client(session: SparkSession, remote: str) -> Iterator[Any]:
    """Open the server's session from a second client."""
    first: Any = session
    second: Any = RemoteSession.builder.remote(f"{remote}/;session_id={first.session_id}").create()
    try:
        yield second
    finally:
        Connect(second).close()


def ended_elsewhere(session: SparkSession, remote: str) -> None:
    """End a session on the server without notice to its client."""
    with other_client(session, remote) as second:
        second.client.release_session()


def ours(remote: str) -> dict[str, Any]:
    """Observe an owned session and its sibling session after an idle time."""
    session = spark_session({})
    sibling = access_of(session).child()
    time.sleep(3 * IDLE_SECONDS)
    idle = [answer_of(session), answer_of(sibling)]
    ended_elsewhere(sibling, remote)
    closed: Any = access_of(session).child()
    closed.client.close()
    tables = [outcome_of(lambda one=one: of_a_table(one)) for one in (sibling, closed)]  # type: ignore[misc]
    lost = []
    for child in (sibling, closed):
        try:
            child.sql("SELECT 1").collect()
        except Exception as error:  # noqa: BLE001 - it is looked at
            death_error = death(error, {}, Path())
            lost.append(death_error and death_error.code)
    half = half_made(session, remote)
    stop_session(session)
    return {"idle": idle, "lost": lost, "tables": tables, "half": half}


def of_a_table(session: SparkSession) -> None:
    """Run a statement like the statements on tables of a lake in a catalog."""
    with failures("catalog://main/bronze/changes"):
        session.sql("SELECT 1").collect()


def half_made(session: SparkSession, remote: str) -> str:
    """Interrupt a clone before it receives its settings; return the server's later answer about the clone."""
    clones: list[SparkSession] = []

    def interrupted(clone: SparkSession, _: object = None) -> None:
        clones.append(clone)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect, "lean", interrupted)
        with pytest.raises(KeyboardInterrupt):
            access_of(session).child()
    with other_client(clones[0], remote) as second:
        return answer_of(second)


def observe(file: Path, remote: str) -> dict[str, Any]:
    """Observe deltasmelt's work in a borrowed session."""
    builder: Any = PySpark.builder
    theirs: SparkSession = builder.remote(remote).getOrCreate()
    results: dict[str, Any] = {}
    pipeline = load_pipeline(file)
    with spark_for(pipeline, SilentOutput()) as session:
        sibling = access_of(session).child()
        results["beside"] = answer_of(sibling)
    with other_client(sibling, remote) as second:
        results["after"] = answer_of(second)
    messages: list[str] = []
    start = time.monotonic()
    try:
        with spark_for(pipeline, SilentOutput()) as session:
            clone = access_of(session).child()
            runs = threading.Thread(target=lambda: messages.append(outcome_of(clone.sql(_LONG).collect)))
            runs.start()
            time.sleep(2)
            signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        runs.join(30)
        results["interrupted"] = [messages, time.monotonic() - start < 25]
    before = theirs.sql("SHOW VIEWS").count()
    with deltasmelt.open(file) as lake:
        results["rows"] = [one_of(lake.sql(_ORDERS, as_of=moment)) for moment in (None, None, FIRST)]
        results["views"] = theirs.sql("SHOW VIEWS").count() - before
        lake.preview("customer", 1)
    results["views after"] = theirs.sql("SHOW VIEWS").count() - before
    results |= in_a_catalog(file)
    ended_elsewhere(theirs, remote)
    with deltasmelt.open(file) as lake:
        results["ended"] = [
            outcome_of(lambda: lake.sql(_ORDERS)),
            outcome_of(lambda: lake.table("silver.orders")),
        ]
    Connect(theirs).close()
    theirs.stop()
    return results


def in_a_catalog(file: Path) -> dict[str, Any]:
    """Observe an empty lake without a path: its error, and the number of its sessions."""
    catalog_file = file.with_name("named.yml")
    catalog_file.write_text(
        file.read_text().replace("lake: {path: ./lake}", "lake: {catalog: spark_catalog}")
    )
    before = len(connect._clones)
    with deltasmelt.open(catalog_file) as lake:
        results = {"catalog": [outcome_of(lake.at), len(connect._clones) - before]}
    return {**results, "catalog after": len(connect._clones) - before}


def held(file: Path, remote: str) -> dict[str, Any]:
    """Observe a lake's own session after an idle time and after its end."""
    with deltasmelt.open(file) as lake:
        now = lake.at()
        time.sleep(2 * IDLE_SECONDS)
        idle = outcome_of(lambda: one_of(now.sql(_ORDERS)))
        ended_elsewhere(now.table("silver.orders").sparkSession, remote)
        messages = [outcome_of(lambda: now.sql(_ORDERS)), outcome_of(lambda: one_of(lake.sql(_ORDERS)))]
    return {"idle": idle, "ended": messages}


def main(folder: Path, remote: str) -> None:
    """Observe each kind of session.

    Args:
        folder: folder for a lake and the observations.
        remote: address of the server, as in `SPARK_REMOTE`.
    """
    file = make_small_lake(folder)
    results = {"given": observe(file, remote)}
    os.environ["SPARK_REMOTE"] = remote
    results |= {"ours": ours(remote), "held": held(file, remote)}
    (folder / "seen.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
