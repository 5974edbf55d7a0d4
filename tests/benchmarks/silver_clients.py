"""The clients of `bench_silver`, each in a process with its own JVM: silver, and two templates.

``python -m tests.benchmarks.silver_clients KIND FOLDER`` starts a client. Each line of standard input is a
piece of work, each line of standard output its cost. A waiting client uses no CPU.

The template is today's usual solution: the batch of JSON records parsed by `from_json`, reduced to the newest
record of each key by `row_number`, then one MERGE. Session and table have default settings. The tuned
template is a careful user's version for this machine: typed records, as many shuffle partitions as cores,
deletion vectors on the table. Both keep one row per key and do nothing else: no types out of range, no
unchanged TOAST values, no changed keys, no TRUNCATE.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from deltalake import DeltaTable

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.pipelines.spark.jars import delta_jars
from deltasmelt.pipelines.spark.session import spark_session
from deltasmelt.silver.cycle import Silver, warm_up
from deltasmelt.silver.settings import SilverSettings
from tests.benchmarks.silver_work import NAMES, TYPED
from tests.living import processes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_MASTER: Final = "local[2]"
_MEMORY: Final = "2g"


class Client(Protocol):
    """A client that folds one batch at a time."""

    spark: SparkSession

    def fold(self, batch: str) -> None: ...

    def tables(self) -> list[str]: ...


class SilverClient:
    """A client that runs one cycle of silver over the new changes in bronze."""

    settings: ClassVar[dict[str, str]] = {}

    def __init__(self, folder: str) -> None:
        self.lake = Lake(path=f"{folder}/lake")
        settings = {name: value.format(folder=folder) for name, value in self.settings.items()}
        self.spark = spark_session({"spark.driver.memory": _MEMORY, "spark.master": _MASTER, **settings})
        warm_up(self.spark)
        self._silver = Silver(self.spark, self.lake, SilverSettings(), ControlTables(self.lake))

    def fold(self, batch: str) -> None:  # noqa: ARG002 - the template's
        if self._silver.cycle() is None:
            raise SystemExit("there was nothing to fold")

    def tables(self) -> list[str]:
        return [str(path) for path in sorted(Path(f"{self.lake.path}/silver").glob("*"))]


class LoggedClient(SilverClient):
    """A silver client with an event log, which shows the bytes that its tasks spilled."""

    settings: ClassVar[dict[str, str]] = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": "file://{folder}/events",
    }

    def __init__(self, folder: str) -> None:
        Path(folder, "events").mkdir(exist_ok=True)
        super().__init__(folder)


class TemplateClient:
    """A client that runs row_number, then MERGE."""

    batches = "json"
    settings: ClassVar[dict[str, str]] = {}
    properties = ""

    def __init__(self, folder: str) -> None:
        from pyspark.sql import SparkSession  # noqa: PLC0415

        name = type(self).__name__
        self._folder = f"{folder}/{name}"
        self._targets: list[str] = []
        jars = ",".join(str(jar) for jar in delta_jars(lambda _: None))
        builder = (
            SparkSession.builder.master(_MASTER)
            .config("spark.driver.memory", _MEMORY)
            .config("spark.jars", jars)
            .config("spark.ui.enabled", "false")
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse-{name}")
            .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        )
        for key, value in self.settings.items():
            builder = builder.config(key, value)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")
        warm_up(self.spark)

    def records(self) -> str:
        """Return the query of the batch as rows with `op`, `lsn` and the columns."""
        source = "source STRUCT<ts_ms BIGINT, txId BIGINT, lsn BIGINT>"
        record = f"before STRUCT<{TYPED}>, after STRUCT<{TYPED}>, {source}, op STRING, ts_ms BIGINT"
        values = ", ".join(f"r.after.{name} AS {name}" for name in NAMES if name != "id")
        return (
            f"SELECT r.op AS op, r.source.lsn AS lsn, coalesce(r.after.id, r.before.id) AS id, {values} "
            f"FROM (SELECT from_json(value, '{record}') AS r FROM batch)"
        )

    def fold(self, batch: str) -> None:
        for table in sorted(Path(batch).iterdir()):
            target = f"{self._folder}/{table.name}"
            if target not in self._targets:
                self.spark.sql(f"CREATE TABLE delta.`{target}` ({TYPED}) USING DELTA {self.properties}")
                self._targets.append(target)
            self.spark.read.format("delta").load(f"{table}/{self.batches}").createOrReplaceTempView("batch")
            self._merge(target)

    def _merge(self, target: str) -> None:
        updates = ", ".join(f"t.{name} = s.{name}" for name in NAMES)
        values = ", ".join(f"s.{name}" for name in NAMES)
        self.spark.sql(f"""
            MERGE INTO delta.`{target}` AS t
            USING (
              SELECT * FROM (
                SELECT *, row_number() OVER (PARTITION BY id ORDER BY lsn DESC) AS newest
                FROM ({self.records()}))
              WHERE newest = 1
            ) AS s
            ON t.id = s.id
            WHEN MATCHED AND s.op = 'd' THEN DELETE
            WHEN MATCHED THEN UPDATE SET {updates}
            WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT ({", ".join(NAMES)}) VALUES ({values})""")

    def tables(self) -> list[str]:
        return self._targets


class TunedClient(TemplateClient):
    """A template client with typed records, few shuffle partitions and deletion vectors."""

    batches = "typed"
    settings: ClassVar[dict[str, str]] = {"spark.sql.shuffle.partitions": "2"}
    properties = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"

    def records(self) -> str:
        return "SELECT * FROM batch"


CLIENTS: Final[dict[str, Callable[[str], Client]]] = {
    "silver": SilverClient,
    "logged": LoggedClient,
    "template": TemplateClient,
    "tuned": TunedClient,
}


def java() -> int | None:
    """Return the process id of this process's JVM; None without a JVM."""
    ours = (process.pid for process in processes() if (process.name, process.parent) == ("java", os.getpid()))
    return next(ours, None)


def cpu_seconds(pid: int | None) -> float:
    """Return the user and system time of the JVM and of this process."""
    seconds = time.process_time()
    if pid is None:
        return seconds
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return seconds + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int | None) -> float:
    """Return the largest resident memory of the JVM so far, in MiB."""
    if pid is None:
        return 0.0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def written(uri: str) -> dict[str, Any]:
    """Return the newest commit of a table, and the table's number of rows and files."""
    table = DeltaTable(uri)
    entry = table.history(1)[0]
    return {
        "name": Path(uri).name,
        "operation": entry["operation"],
        "version": table.version(),
        "metrics": entry.get("operationMetrics", {}),
        "predicate": entry.get("operationParameters", {}).get("predicate"),
        "files": len(table.file_uris()),
    }


def main(kind: str, folder: str) -> None:
    """Work line by line until standard input ends."""
    client = CLIENTS[kind](folder)
    pid = java()
    answer({"ready": True})
    for line in sys.stdin:
        batch = json.loads(line)
        before, clock = cpu_seconds(pid), time.monotonic()
        client.fold(batch)
        wall = time.monotonic() - clock
        cost = {"wall": wall, "cpu": cpu_seconds(pid) - before, "peak": peak_mib(pid)}
        answer({**cost, "tables": [written(uri) for uri in client.tables()]})
    client.spark.stop()


def answer(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)  # noqa: T201 - the result


if __name__ == "__main__":
    main(*sys.argv[1:])
