"""How long silver takes: a first fold of the bulk workload, small windows, several tables side by side.

Makes a lake whose bronze holds what `bulk.sql` sends (200 k customers; 600 k orders inserted, 200 k updated,
60 k deleted), without a server, then folds it. Prints wall and CPU seconds of the Spark process; run as
``python -m tests.benchmarks.silver_fold FOLDER``.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, Transaction, write_deltalake

from bronze.control_tables import ControlTables
from bronze.lake import Lake
from bronze.rows import list_array
from bronze.shapes import PgType
from bronze.tables import CHANGES, CHANGES_SCHEMA, CONFIRM_APP, STREAM_APP
from pipelines.session import spark_session
from silver.cycle import Silver, warm_up
from silver.settings import SilverSettings
from tests.silver.histories import START, BronzeWriter, relation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bronze.shapes import Relation

FILE_ROWS = 131_072


def base(name: str, typmod: int = -1) -> PgType:
    return PgType("base", name, typmod=typmod)


def numeric(precision: int, scale: int) -> PgType:
    return base("numeric", (precision << 16 | scale) + 4)


CUSTOMERS = relation(
    "customers",
    [
        ("id", base("int8")), ("name", base("text")), ("email", base("text")), ("tier", base("text")),
        ("balance", numeric(14, 2)), ("created_at", base("timestamptz")), ("meta", base("jsonb")),
        ("active", base("bool")),
    ],
    ["id"],
    relation_id=1,
)  # fmt: skip
ORDER_COLUMNS = [
    ("id", base("int8")), ("customer_id", base("int8")), ("status", base("text")), ("total", numeric(12, 2)),
    ("placed_at", base("timestamptz")), ("note", base("text")),
    ("tags", PgType("array", "_text", element=base("text"))), ("qty", base("int4")),
    ("price", base("float8")), ("uid", base("uuid")),
]  # fmt: skip
ORDERS = relation("orders", ORDER_COLUMNS, ["id"], relation_id=2)
COPIES = [relation(f"orders_{number}", ORDER_COLUMNS, ["id"], relation_id=10 + number) for number in range(5)]


def interleave(columns: Sequence[pa.StringArray]) -> pa.ListArray:
    """Rows of text from columns of text."""
    rows, width = len(columns[0]), len(columns)
    order = (np.arange(rows)[:, None] + np.arange(width) * rows).ravel()
    return list_array(np.arange(rows + 1) * width, pa.concat_arrays(columns).take(pa.array(order)))


def text(values: Any) -> pa.StringArray:
    return pa.array(values).cast(pa.string())


def words(*parts: Any) -> pa.StringArray:
    return pc.binary_join_element_wise(
        *(pa.scalar(one) if isinstance(one, str) else one for one in parts), ""
    )


def same(value: str | None, count: int) -> pa.StringArray:
    return pa.array([value] * count, pa.string())


def customer_rows(ids: Any) -> pa.ListArray:
    count, key = len(ids), text(ids)
    tiers = pa.array(np.array(["free", "pro", "enterprise"])[ids % 3])
    balance = text(np.round((ids % 100_000) / 7.0, 2))
    moment = same("2026-11-21 14:00:00.123456+00", count)
    meta, active = words('{"k": ', key, ', "lang": "en"}'), pa.array(np.where(ids % 2 == 0, "t", "f"))
    email = words("user", key, "@example.com")
    return interleave([key, words("Customer ", key), email, tiers, balance, moment, meta, active])


def order_rows(ids: Any, status: str | None = None, raised: int = 0) -> pa.ListArray:
    count, key = len(ids), text(ids)
    states = pa.array(np.array(["new", "paid", "shipped", "done"])[ids % 4])
    return interleave(
        [
            key, text(1 + ids % 200_000), states if status is None else same(status, count),
            text(np.round((ids % 1000) * 1.37 + raised, 2)), same("2026-11-21 14:00:00.123456+00", count),
            words("note for order ", key), words("{a,b", text(ids % 10), "}"), text(ids % 7),
            text(np.round(ids * 0.123, 3)), words(text(10_000_000 + ids), "-1111-2222-3333-444455556666"),
        ]
    )  # fmt: skip


def deleted_orders(ids: Any) -> pa.ListArray:
    return interleave([text(ids), *[same(None, len(ids))] * (len(ORDER_COLUMNS) - 1)])


def transaction(shape: Relation, lsn: int, op: str, rows: pa.ListArray) -> pa.Table:
    """One transaction of changes of one kind."""
    count = len(rows)
    names = pa.array([[column.name for column in shape.columns]], pa.list_(pa.string())).take(
        pa.array([0] * count)
    )
    none, time_ = (
        pa.nulls(count, pa.list_(pa.string())),
        pa.array([START] * count, pa.timestamp("us", tz="UTC")),
    )
    deleted = op == "delete"
    columns = {
        "commit_lsn": pa.array(np.full(count, lsn)), "seq": pa.array(np.arange(count)),
        "lsn": pa.array(np.full(count, lsn)), "xid": pa.array(np.full(count, lsn)), "commit_ts": time_,
        "op": same(op, count), "table_schema": same("public", count),
        "table_name": same(shape.table.name, count), "columns": names,
        "relation_id": pa.array(np.full(count, shape.relation_id)),
        "new": none if deleted else rows, "old": rows if deleted else none,
        "old_is_key": pa.array([deleted] * count), "unchanged": none,
        "end_of_tx": pa.array(np.arange(count) == count - 1), "ingested_at": time_,
    }  # fmt: skip
    return pa.table(columns).select(CHANGES_SCHEMA.names).cast(CHANGES_SCHEMA)


class Bench:
    """A lake, its Spark session, and what each step cost."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.lake = Lake(path=str(folder))
        self.lsn = 10
        bronze = BronzeWriter(self.lake)
        bronze.relations([CUSTOMERS, ORDERS, *COPIES])
        for shape in (CUSTOMERS, ORDERS, *COPIES):
            bronze.snapshot(shape, 10, [])
        bronze.commit(10)
        self.spark = spark_session({"spark.driver.memory": "2g", "spark.master": "local[2]"})
        self.control = ControlTables(self.lake)
        self.silver = Silver(self.spark, self.lake, SilverSettings(), self.control)

    def write(self, *changes: tuple[Relation, str, pa.ListArray]) -> None:
        """One transaction for each kind of change, committed together."""
        for shape, op, rows in changes:
            self.lsn += 50_000_000
            table = transaction(shape, self.lsn, op, rows)
            marks = [Transaction(STREAM_APP, self.lsn), Transaction(CONFIRM_APP, self.lsn + 1)]
            for start in range(0, len(table), FILE_ROWS):
                last = start + FILE_ROWS >= len(table)
                write_deltalake(
                    self.lake.uri("bronze", CHANGES),
                    table.slice(start, FILE_ROWS),
                    mode="append",
                    commit_properties=CommitProperties(app_transactions=marks) if last else None,
                )

    def timed(self, name: str, work: Callable[[], object]) -> None:
        wall, cpu = time.monotonic(), java_seconds()
        work()
        line = f"{name:<55} {time.monotonic() - wall:7.1f} s wall {java_seconds() - cpu:7.1f} s CPU"
        sys.stdout.write(f"{line}  (load {os.getloadavg()[0]:.0f})\n")
        sys.stdout.flush()


def java_seconds() -> float:
    """CPU seconds of the Java process under this one."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = entry.read_text()
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        if "(java)" in stat and int(fields[1]) == os.getpid():
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def main(folder: str) -> None:
    bench = Bench(Path(folder))
    rng = np.random.default_rng(1)
    orders, customers = np.arange(1, 600_001), np.arange(1, 200_001)
    bench.timed("warm-up", lambda: warm_up(bench.spark))
    bench.write(
        (CUSTOMERS, "insert", customer_rows(customers)),
        (ORDERS, "insert", order_rows(orders)),
        (ORDERS, "update", order_rows(orders[orders % 3 == 0], "paid", 1)),
        (ORDERS, "delete", deleted_orders(orders[orders % 10 == 0])),
        *((copy, "insert", order_rows(np.arange(1, 1001))) for copy in COPIES),
    )
    bench.timed("first fold: 860 k changes, 200 k, five times 1 k", bench.silver.cycle)
    for run in bench.control.runs("silver"):
        sys.stdout.write(
            f"    {run.name:<12} {run.changes:>8} changes, {run.inserts:>7} rows, {run.seconds:.1f} s\n"
        )
    living = orders[orders % 10 != 0]
    for count in (9000, 9000, 9000, 100, 100, 100):
        bench.write(
            (ORDERS, "update", order_rows(np.sort(rng.choice(living, count, replace=False)), "paid", 2))
        )
        bench.timed(f"{count} scattered updates on 540 k rows", bench.silver.cycle)
    for number in range(3):
        some = np.arange(1, 101) + 1000 * number
        bench.write((COPIES[0], "update", order_rows(some % 1000 + 1, "paid", number)))
        bench.timed("100 updates on a table of 1 k", bench.silver.cycle)
    for number in range(3):
        rows = order_rows(np.arange(1, 101), "paid", number)
        bench.write(*((copy, "update", rows) for copy in COPIES))
        bench.timed("100 updates on each of five tables", bench.silver.cycle)
    bench.write()
    bench.timed("nothing new", bench.silver.cycle)
    bench.silver.close()
    bench.spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
