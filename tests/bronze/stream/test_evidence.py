"""Test which transaction of bronze proves a server's log if other transactions prove nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA
from deltasmelt.bronze.store.position import SentTransaction
from deltasmelt.bronze.stream.evidence import newest_counting
from tests.bronze.store.test_sink import at, open_sink

MOMENT = datetime(2026, 11, 26, tzinfo=UTC)
RELIED, COPIED_AGAIN = 1, 2
ROWS = [
    (100, RELIED, "insert"),
    (200, RELIED, "insert"),
    (250, COPIED_AGAIN, "insert"),
    (260, RELIED, "snapshot"),
    (300, COPIED_AGAIN, "insert"),
]


@pytest.mark.parametrize(
    ("sent", "confirmed", "snapshot", "newest"),
    [
        pytest.param(300, 150, 50, (200, True), id="an earlier transaction of a table that bronze relies on"),
        pytest.param(200, 150, 50, (200, True), id="bronze's newest transaction"),
        pytest.param(400, 150, 50, (400, False), id="a message, of which bronze keeps no row"),
        pytest.param(300, 201, 50, (200, False), id="none after the slot's place"),
        pytest.param(300, 150, 260, (300, False), id="a snapshot in between would not be proved"),
        pytest.param(300, 280, 260, (279, False), id="a snapshot before the slot's place is"),
    ],
)
def test_the_newest_transaction_that_proves_bronze_s_log(
    lake_path: str, sent: int, confirmed: int, snapshot: int, newest: tuple[int, bool]
) -> None:
    sink = open_sink(lake_path)
    plain = [
        {"commit_lsn": lsn, "seq": 0, "commit_ts": MOMENT, "op": op, "relation_id": relation_id}
        for lsn, relation_id, op in ROWS
    ]
    sink.write(pa.Table.from_pylist(plain, schema=CHANGES_SCHEMA))
    sent_transaction = SentTransaction(Lsn(sent), 0)
    sink.commit(replace(at(400), sent=sent_transaction))
    lsn, timed = newest
    proof = newest_counting(
        open_existing(sink.uri), {RELIED: Lsn(snapshot)}, sent_transaction, Lsn(confirmed)
    )
    assert proof == (SentTransaction.of(Lsn(lsn), MOMENT) if timed else SentTransaction(Lsn(lsn), 0))
