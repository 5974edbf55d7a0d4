"""Statuses for tests of the monitor: a healthy pipeline, and a pipeline with every kind of trouble."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

from deltasmelt.bronze.checks.wal_budget import WalBudget
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.progress import SnapshotView
from deltasmelt.bronze.setup.slot import SlotState
from deltasmelt.bronze.store.retention import Boundary, Holder
from deltasmelt.pipelines.health.clustering import ClusteringHint
from deltasmelt.pipelines.health.lake_half import TableStatus
from deltasmelt.pipelines.health.status import Rung, Status

HEAD = Lsn(0x16B3748)
SECRET = "hunter2hunter2hunter2"


def table(name: str, state: str = "streaming", error: str | None = None) -> TableStatus:
    streaming = state == "streaming"
    return TableStatus(
        name,
        state,
        HEAD if streaming else None,
        4 if streaming else None,
        12 if streaming else None,
        0.5,
        error,
    )


def ladder(silver_seconds: float = 1.0) -> tuple[Rung, ...]:
    return (
        Rung("head", HEAD, 0, 0.0, 0),
        Rung("slot confirmed", Lsn(HEAD - 4096), 4096, 0.2, None),
        Rung("received", Lsn(HEAD - 100), 100, 0.0, None),
        Rung("bronze", Lsn(HEAD - 4097), 4096, 0.2, None),
        Rung("silver", Lsn(HEAD - 90001), 90000, silver_seconds, 17),
        Rung("gold", Lsn(HEAD - 180001), 180000, silver_seconds + 2, 34),
    )


WELL = Status(
    pipeline="shop",
    source="db.example.com:5432/shop",
    source_error=None,
    lake="s3://lake/shop",
    lake_error=None,
    ladder=ladder(),
    slot=SlotState("smelt_shop", "pgoutput", Lsn(HEAD - 4096), 4711, "reserved", 50_000_000_000, "shop"),
    slot_seconds_left=86_400.0,
    snapshot=None,
    tables=(table("public.customers"), table("public.orders")),
    documents=(table("customer"),),
    errors=(),
)

_WRONG = (
    "values of public.bad have no key, postgresql://smelt:" + SECRET + "@db/shop <script>alert(1)</script>"
)

OPEN = f"pid 4711 (boss on shop, app password={SECRET}, idle in transaction, 300 s)"
ILL = dataclasses.replace(
    WELL,
    wal=WalBudget(
        1 << 30, (1 << 30) + 5, 0, 0, None, reads=True,
        transactions=f"{OPEN}; prepared transaction t1 of boss (9 s)",
    ),
    ladder=ladder(silver_seconds=900.0),
    lake=f"s3://key:{SECRET}@lake/shop",
    slot=SlotState("smelt_shop", "pgoutput", Lsn(HEAD - 4096), None, "unreserved", -5, "shop"),
    slot_seconds_left=0.0,
    snapshot=SnapshotView(1200, 90_000, 0.4, 75.0, ("public.lines",)),
    tables=(
        *WELL.tables,
        table("public.bad", "stopped", _WRONG),
        table("public.lines", "snapshot"),
        table("public.old", "dropped"),
        table("public.late", "waiting"),
    ),
    errors=(
        OpenError(
            "table", "public.bad", "key-missing", _WRONG, "ALTER TABLE public.bad ADD PRIMARY KEY (id)",
            Lsn(HEAD - 5), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        ),
        OpenError("document", "customer", "document-failed", "a value fails", "smelt rebuild FILE gold"),
        OpenError("pipeline", "shop", "copies-wait-for-transactions", f"waits for open transactions: {OPEN}"),
    ),
    clustering=(ClusteringHint("orders", "customer_id", 40, 30.0, 900_000_000),),
    retention=Boundary(
        Lsn(10), Lsn(90), Lsn(40), (Holder("public.lines", "snapshot", Lsn(40), 7_000_000),), 7_000_000, 0
    ),
)  # fmt: skip
