"""Pure decode speed, without server, network or lake: ``python -m tests.benchmarks.decode_bench``.

The benchmark writes the messages of the standard workloads itself. *bulk* is 1,060,000 changes in four
transactions: inserts of ten and of eight columns, updates, deletes. *oltp* is 100,000 transactions of one
change each.
"""

from __future__ import annotations

import gc
import struct
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from deltasmelt.bronze.pgoutput.decoder import StreamDecoder
from tests.bronze import wire

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ORDERS = ["id", "customer_id", "status", "total", "placed_at", "note", "tags", "qty", "price", "uid"]
CUSTOMERS = ["id", "name", "email", "tier", "balance", "created_at", "meta", "active"]
NOW = "2026-11-21 14:27:58.022751+00"
UID = str(uuid.UUID(int=2**127 - 1))
BATCH_BYTES = 8_000_000


def order(i: int, status: str) -> list[str | None]:
    """Return an orders row as in the workload's INSERT."""
    total, tags = f"{i % 1000 * 1.37:.2f}", f"{{a,b{i % 10}}}"
    customer_id, note, price = str(1 + i % 200_000), f"note for order {i}", str(i * 0.123)
    return [str(i), customer_id, status, total, NOW, note, tags, str(i % 7), price, UID]


def customer(i: int) -> list[str | None]:
    """Return a customers row as in the workload's INSERT."""
    meta = f'{{"k": {i}, "lang": "en"}}'
    return [
        str(i),
        f"Customer {i}",
        f"user{i}@example.com",
        "free",
        f"{i % 100_000 / 7.0:.2f}",
        NOW,
        meta,
        "t",
    ]


def bulk(scale: float = 1.0) -> list[bytes]:
    """Return the messages of the bulk workload."""
    customers, orders = int(200_000 * scale), int(600_000 * scale)
    return [
        *(wire.begin(1_000), wire.plain_relation(1, "customers", CUSTOMERS)),
        *(wire.insert(1, customer(i), i) for i in range(1, customers + 1)),
        *(wire.commit(1_000), wire.begin(2_000), wire.plain_relation(2, "orders", ORDERS)),
        *(wire.insert(2, order(i, "new"), i) for i in range(1, orders + 1)),
        *(wire.commit(2_000), wire.begin(3_000)),
        *(wire.update(2, order(i, "paid")) for i in range(3, orders + 1, 3)),
        *(wire.commit(3_000), wire.begin(4_000)),
        *(wire.delete(2, [str(i), *[None] * 9]) for i in range(10, orders + 1, 10)),
        wire.commit(4_000),
    ]


def oltp(transactions: int = 100_000) -> list[bytes]:
    """Return the messages of the oltp workload: half inserts, four tenths updates, one tenth deletes."""
    row, deleted = order(7, "paid"), ["7", *[None] * 9]
    changes = [wire.insert(2, row), wire.update(2, row), wire.delete(2, deleted)]
    kinds = [0, 1, 0, 1, 0, 1, 0, 1, 0, 2]
    messages = [wire.begin(100), wire.plain_relation(2, "orders", ORDERS), wire.commit(100)]
    for i in range(transactions):
        lsn = 1_000 + 100 * i
        messages += [wire.begin(lsn), changes[kinds[i % 10]], wire.commit(lsn)]
    return messages


def batches(messages: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Split the messages into batches of about BATCH_BYTES."""
    start = size = 0
    for i, message in enumerate(messages):
        size += len(message)
        if size >= BATCH_BYTES:
            yield messages[start : i + 1]
            start, size = i + 1, 0
    yield messages[start:]


def report(line: str) -> None:
    """Print a line of the result."""
    print(line)  # noqa: T201 - a benchmark prints


def measure(name: str, messages: list[bytes]) -> None:
    """Decode the messages once and print the cost."""
    total = sum(map(len, messages))
    cells = sum(
        struct.unpack_from(">H", message, 31)[0]
        for message in messages
        if message[25:26] in (b"I", b"U", b"D")
    )
    gc.collect()
    decoder = StreamDecoder(lambda _relation, _lsn: None, lambda _table: True)
    ready = list(batches(messages))
    wall, cpu = time.perf_counter(), time.process_time()
    rows = out = 0
    for batch in ready:
        changes = decoder.feed(batch).changes
        rows += changes.num_rows
        out += changes.nbytes
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    report(f"{name}: {len(messages):,} messages, {total / 1e6:.0f} MB in, {out / 1e6:.0f} MB out")
    report(
        f"    {wall:.2f} s, {cpu:.2f} CPU s, {rows / cpu:,.0f} changes/s, {cpu / cells * 1e6:.3f} µs a cell"
    )


def peak_memory(messages: list[bytes], size: int = 64_000_000) -> None:
    """Return the peak memory that a feed of `size` bytes adds, as a multiple of the batch."""
    batch, total = [], 0
    for message in messages:
        batch.append(message)
        total += len(message)
        if total >= size:
            break
    decoder = StreamDecoder(lambda _relation, _lsn: None, lambda _table: True)
    decoder.feed(batch[:1000])
    gc.collect()
    pa.default_memory_pool().release_unused()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    decoder = StreamDecoder(lambda _relation, _lsn: None, lambda _table: True)
    changes = decoder.feed(batch).changes
    added = _status("VmHWM") - before
    report(f"one feed of {total / 1e6:.0f} MB: {changes.nbytes / 1e6:.0f} MB out, peak +{added / 1e6:.0f} MB "
          f"= {added / total:.1f} times the batch")  # fmt: skip


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def small_feeds(messages: list[bytes], count: int = 2_000) -> None:
    """Measure the cost of a feed with a single transaction of one change."""
    decoder = StreamDecoder(lambda _relation, _lsn: None, lambda _table: True)
    decoder.feed(messages[:3])
    cpu = time.process_time()
    for i in range(count):
        decoder.feed(messages[3 + 3 * i : 6 + 3 * i])
    cpu = time.process_time() - cpu
    report(f"a feed of one small transaction: {cpu / count * 1e6:.0f} µs")


def main() -> None:
    """Measure both workloads."""
    messages = bulk()
    for _ in range(2):
        measure("bulk", messages)
    peak_memory(messages)
    del messages
    messages = oltp()
    for _ in range(2):
        measure("oltp", messages)
    small_feeds(messages)


if __name__ == "__main__":
    main()
