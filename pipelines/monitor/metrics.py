"""The newest sample as Prometheus metrics. Pure, except for the library that writes the text.

Names follow https://prometheus.io/docs/practices/naming/. The text omits an unknown number, so an alert rule
never sees a false zero. No metric has a table's name as a label: the number of series must not grow with the
tables. The page and `smelt status` name the tables.

`SlotTrend` computes the time until the slot's room is used up, from samples over two minutes. The room
(``safe_wal_size``) falls as the server writes WAL, and rises in steps as the reader confirms. Between two
samples the room may only fall although nothing is wrong, so a rate over a few seconds makes flapping alerts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from deltasmelt.pipelines.health.status import slot_danger
from deltasmelt.pipelines.health.status_json import TABLE_STATES, WAL_STATUS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from deltasmelt.pipelines.health.lake_half import TableStatus
    from deltasmelt.pipelines.health.status import Status
    from deltasmelt.pipelines.monitor.samples import View

HALF_SECONDS: Final = 60.0
"""Length of each of the two compared periods."""


class _SlotSample(NamedTuple):
    """Time of a sample, the slot's room, and the end of the log, both in bytes."""

    at: float
    room: int
    head: int


class SlotTrend:
    """Samples of one slot in the last two minutes."""

    def __init__(self) -> None:
        self._samples: deque[_SlotSample] = deque()
        self._limit: int | None = None

    def of(self, status: Status, now: float) -> Status:
        """Return the status with the time left and the rate of writing from this trend; None until known."""
        if status.source_error is not None:  # without a slot; earlier samples stay valid
            return status
        self._add(status, now)
        wal = None if status.wal is None else replace(status.wal, rate=self._written())
        return replace(status, slot_seconds_left=self._seconds_left(), wal=wal)

    def _add(self, status: Status, now: float) -> None:
        slot, limit = status.slot, None if status.wal is None else status.wal.limit
        if slot is None or slot.safe_wal_size is None or limit != self._limit:
            self._samples.clear()
        self._limit = limit
        if slot is None or slot.safe_wal_size is None:
            return
        head = next((rung.lsn for rung in status.ladder if rung.name == "head"), None)
        self._samples.append(_SlotSample(now, slot.safe_wal_size, head or 0))
        while len(self._samples) > 1 and now - self._samples[1].at >= 2 * HALF_SECONDS:
            self._samples.popleft()

    def _is_long_enough(self) -> bool:
        return bool(self._samples) and self._samples[-1].at - self._samples[0].at >= 2 * HALF_SECONDS

    def _seconds_left(self) -> float | None:
        if not self._is_long_enough():
            return None
        # Compare the largest room of one minute with the largest room of the minute before. Steps more often
        # than once a minute then do not count, and the net pace of the shrinking room remains.
        middle = self._samples[-1].at - HALF_SECONDS
        earlier = [sample for sample in self._samples if sample.at <= middle]
        later = [sample for sample in self._samples if sample.at > middle]
        before, after = (max(half, key=lambda sample: sample.room) for half in (earlier, later))
        shrunk = before.room - after.room
        if shrunk <= 0:
            return None
        return max(self._samples[-1].room, 0) * max(after.at - before.at, HALF_SECONDS) / shrunk

    def _written(self) -> float | None:
        if not self._is_long_enough():
            return None
        first, last = self._samples[0], self._samples[-1]
        return max(last.head - first.head, 0) / (last.at - first.at)


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_Sample = tuple[tuple[str, ...], float | None]


def exposition(
    view: View, pipeline: str, *, ready: bool, counters: Mapping[str, int], restarts: int | None = None
) -> bytes:
    """Return the text for Prometheus.

    Args:
        pipeline: name of the pipeline, the first label of every metric.
        counters: number of alerts by outcome.
        restarts: number of the reader's restarts; None without a reader.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(
        _Collector(_of_command(view, pipeline, ready=ready, counters=counters, restarts=restarts))
    )
    if view.status is not None:
        registry.register(_Collector(_of_status(view.status, pipeline)))
    return generate_latest(registry)


class _Collector(Collector):
    """Finished metrics in the form required by the library."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def _of_command(
    view: View, pipeline: str, *, ready: bool, counters: Mapping[str, int], restarts: int | None
) -> Iterator[Metric]:
    gauge = _Gauges(pipeline)
    yield gauge("ready", "1: the layers of this command are ready, like /readyz.", [((), float(ready))])
    yield gauge(
        "stage_up",
        "1: the stage runs.",
        [((stage,), float(alive)) for stage, alive in view.stages.items()],
        "stage",
    )
    yield gauge("sample_age_seconds", "Age of the status behind the other metrics.", [((), view.age)])
    yield gauge(
        "sample_duration_seconds",
        "Duration of the read of this status.",
        [((), None if view.status is None else view.took)],
    )
    failures = CounterMetricFamily(
        "deltasmelt_sample_failures", "Reads of the status that failed.", labels=["pipeline"]
    )
    failures.add_metric([pipeline], view.failures)
    yield failures
    if restarts is not None:
        restarted = CounterMetricFamily(
            "deltasmelt_reader_restarts", "Restarts of readers that died.", labels=["pipeline"]
        )
        restarted.add_metric([pipeline], restarts)
        yield restarted
    alerts = CounterMetricFamily(
        "deltasmelt_alerts", "Alerts by outcome: sent, retried, dropped.", labels=["pipeline", "outcome"]
    )
    for outcome, count in counters.items():
        alerts.add_metric([pipeline, outcome], count)
    yield alerts


def _of_status(status: Status, pipeline: str) -> Iterator[Metric]:
    gauge = _Gauges(pipeline)
    yield gauge("source_up", "1: the source answers.", [((), float(status.source_error is None))])
    yield gauge("lake_up", "1: the lake can be read.", [((), float(status.lake_read))])
    steps = status.ladder
    step = "step"
    yield gauge(
        "position_bytes",
        "Position of the step in the write-ahead log.",
        [((rung.name,), rung.lsn) for rung in steps],
        step,
    )
    yield gauge(
        "behind_bytes",
        "Write-ahead log between the step and the server's head.",
        [((rung.name,), rung.bytes) for rung in steps],
        step,
    )
    yield gauge(
        "behind_seconds",
        "Age of the oldest transaction that the step lacks.",
        [((rung.name,), rung.seconds) for rung in steps],
        step,
    )
    yield gauge(
        "behind_commits",
        "Transactions that bronze has and the step lacks.",
        [((rung.name,), rung.commits) for rung in steps],
        step,
    )
    yield from _of_slot(status, gauge)
    if status.lake_read:
        yield from _of_lake(status, gauge)


def _of_lake(status: Status, gauge: _Gauges) -> Iterator[Metric]:
    yield from _of_snapshot(status, gauge)
    yield gauge(
        "open_errors",
        "Open errors.",
        _counts((error.scope, error.code) for error in status.errors),
        "scope",
        "code",
    )
    yield gauge("tables", "Tables by state.", _states(status.tables), "state")
    yield gauge("documents", "Documents by state.", _states(status.documents), "state")
    layers = {"silver": status.tables, "gold": status.documents}
    yield gauge(
        "cycle_changes",
        "Changes in the newest cycle of each table or document, all together.",
        [
            ((layer,), _total(table_status.changes for table_status in statuses))
            for layer, statuses in layers.items()
        ],
        "layer",
    )
    yield gauge(
        "cycle_duration_seconds",
        "Time of the newest cycle of a table or document, of the longest.",
        [
            ((layer,), _longest(table_status.seconds for table_status in statuses))
            for layer, statuses in layers.items()
        ],
        "layer",
    )
    yield gauge(
        "clustering_hints", "Tables that `smelt maintain` would cluster.", [((), len(status.clustering))]
    )
    if status.retention is not None:
        held = status.retention.held_bytes
        yield gauge("bronze_held_bytes", "Bytes of bronze past its retention, still needed.", [((), held)])


def _of_slot(status: Status, gauge: _Gauges) -> Iterator[Metric]:
    slot = status.slot
    exists = None if status.source_error else float(slot is not None)
    yield gauge("slot_exists", "1: the slot exists.", [((), exists)])
    if slot is None:
        return
    yield gauge("slot_active", "1: a reader reads the slot.", [((), float(slot.active_pid is not None))])
    yield gauge(
        "slot_held_bytes",
        "Write-ahead log that the server keeps for the slot, from its restart_lsn on.",
        [((), None if status.wal is None else status.wal.held)],
    )
    yield gauge(
        "slot_safe_wal_bytes",
        "safe_wal_size: bytes that the server can write before the slot is in danger; absent: no limit.",
        [((), slot.safe_wal_size)],
    )
    yield gauge(
        "slot_left_seconds",
        "Time until the slot is lost, by the change of its free WAL over two minutes; absent: no decrease.",
        [((), status.slot_seconds_left)],
    )
    yield gauge(
        "slot_wal_status",
        "1 at the present wal_status of the slot.",
        [((name,), float(slot.wal_status == name)) for name in WAL_STATUS],
        "wal_status",
    )
    yield gauge(
        "slot_risk",
        "1: half of the allowed WAL is used; 2: little time is left; 3: the slot is lost at the next "
        "checkpoint. Without a limit: 1 from 10 GiB, 2 from 50 GiB.",
        [((), float(slot_danger(status).level))],
    )


def _of_snapshot(status: Status, gauge: _Gauges) -> Iterator[Metric]:
    view = status.snapshot
    yield gauge(
        "snapshot_tables",
        "Tables with a running snapshot.",
        [((), 0 if view is None else len(view.tables))],
    )
    if view is None:
        return
    yield gauge("snapshot_fraction", "Share of the data that is copied.", [((), view.fraction)])
    yield gauge("snapshot_rows", "Rows copied.", [((), view.rows)])
    yield gauge("snapshot_bytes", "Bytes of text copied.", [((), view.bytes)])
    yield gauge("snapshot_left_seconds", "Estimated time left.", [((), view.seconds_left)])


class _Gauges:
    """Makes gauges with the pipeline's name as their first label."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline

    def __call__(self, name: str, text: str, samples: Iterable[_Sample], *labels: str) -> Metric:
        family = GaugeMetricFamily(f"deltasmelt_{name}", text, labels=["pipeline", *labels])
        for values, value in samples:
            if value is not None:
                family.add_metric([self._pipeline, *values], float(value))
        return family


def _states(tables: Collection[TableStatus]) -> list[_Sample]:
    return [((state,), sum(table.state == state for table in tables)) for state in TABLE_STATES]


def _counts(keys: Iterable[tuple[str, ...]]) -> list[_Sample]:
    counts: dict[tuple[str, ...], int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    return list(counts.items())


def _total(values: Iterable[int | None]) -> int | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def _longest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
