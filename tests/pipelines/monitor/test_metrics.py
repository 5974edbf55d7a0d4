"""Metrics: every number of the status, the names that dashboard and rules use, and no secret."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from deltasmelt.bronze.checks.wal_budget import WalBudget
from deltasmelt.pipelines.health.status import Rung
from deltasmelt.pipelines.monitor.alerts import Alert
from deltasmelt.pipelines.monitor.metrics import exposition
from deltasmelt.pipelines.monitor.samples import Samples
from deltasmelt.pipelines.monitor.webhook import Patience, Webhook
from tests.docs.blocks import ROOT
from tests.patience import wait_for
from tests.pipelines.monitor.rules import exported, require_firing, rules
from tests.pipelines.monitor.statuses import ILL, SECRET, WELL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.pipelines.health.status import Status

DASHBOARD = ROOT / "conf" / "grafana" / "deltasmelt.json"
OF_THE_SCRAPE = 'up{job="deltasmelt"}'
COUNTERS = {"sent": 1, "retried": 2, "dropped": 0}


def text(status: Status | None, restarts: int | None = 0) -> str:
    samples = Samples()
    if status is not None:
        samples.add(status, took=0.03)
    view = samples.view({"bronze": True, "silver": True, "gold": False})
    return exposition(view, "shop", ready=False, counters=COUNTERS, restarts=restarts).decode()


def numbers(status: Status | None) -> dict[tuple[str, ...], float]:
    """Return each sample by its name and label values, except the pipeline's label."""
    by_series = {}
    for family in text_string_to_metric_families(text(status)):
        for sample in family.samples:
            assert sample.labels.pop("pipeline") == "shop"
            by_series[sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))] = (
                sample.value
            )
    return by_series


def test_every_number_of_the_ladder_is_a_metric() -> None:
    by_series = numbers(ILL)
    for rung in ILL.ladder:
        step = f"step={rung.name}"
        assert by_series["deltasmelt_position_bytes", step] == rung.lsn
        for name in ("bytes", "seconds", "commits"):
            assert by_series.get((f"deltasmelt_behind_{name}", step)) == getattr(rung, name)


def test_what_is_not_known_has_no_sample() -> None:
    bare = dataclasses.replace(
        WELL, ladder=(Rung("silver", None, None, None, None),), slot=None, slot_seconds_left=None
    )
    names = {key[0] for key in numbers(bare)}
    assert not {name for name in names if "behind" in name or "position" in name or "slot_left" in name}
    assert numbers(bare)["deltasmelt_slot_exists",] == 0
    down = dataclasses.replace(bare, source_error="no answer")
    assert ("deltasmelt_slot_exists",) not in numbers(down)
    assert numbers(down)["deltasmelt_source_up",] == 0
    assert {key[0] for key in numbers(None)} == {
        "deltasmelt_ready", "deltasmelt_stage_up", "deltasmelt_sample_failures_total",
        "deltasmelt_alerts_total", "deltasmelt_reader_restarts_total",
    }  # fmt: skip


def test_slot_errors_states_cycles_and_snapshots_are_metrics() -> None:
    by_series = numbers(ILL)
    assert by_series["deltasmelt_slot_safe_wal_bytes",] == -5
    assert by_series["deltasmelt_slot_left_seconds",] == 0
    assert by_series["deltasmelt_slot_risk",] == 3
    assert by_series["deltasmelt_slot_active",] == 0
    assert by_series["deltasmelt_slot_wal_status", "wal_status=unreserved"] == 1
    assert by_series["deltasmelt_slot_wal_status", "wal_status=reserved"] == 0
    assert by_series["deltasmelt_open_errors", "code=key-missing", "scope=table"] == 1
    assert by_series["deltasmelt_tables", "state=stopped"] == 1
    assert by_series["deltasmelt_documents", "state=streaming"] == 1
    assert by_series["deltasmelt_cycle_changes", "layer=silver"] == 24
    assert by_series["deltasmelt_cycle_duration_seconds", "layer=gold"] == 0.5
    assert by_series["deltasmelt_snapshot_fraction",] == 0.4
    assert by_series["deltasmelt_snapshot_left_seconds",] == 75
    assert by_series["deltasmelt_stage_up", "stage=gold"] == 0
    assert by_series["deltasmelt_alerts_total", "outcome=retried"] == 2


def test_metrics_hold_no_message_and_no_table() -> None:
    assert SECRET not in text(ILL)
    assert "public." not in text(ILL)


def known() -> set[str]:
    return {key[0] for key in numbers(ILL)}


def labels_of(name: str) -> set[str]:
    keys = {key for key in numbers(ILL) if key[0] == name}
    return {"pipeline"} | {part.partition("=")[0] for key in keys for part in key[1:]}


def queries() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"]


@pytest.mark.parametrize(("title", "query"), list(queries()))
def test_queries_name_metrics_and_labels_that_there_are(title: str, query: str) -> None:
    names = re.findall(r"deltasmelt_\w+", query)
    assert names or OF_THE_SCRAPE in query, title
    assert set(names) <= known()
    for name, matchers in re.findall(r"(deltasmelt_\w+)\{([^}]*)\}", query):
        assert set(re.findall(r"(\w+)=~?\"", matchers)) <= labels_of(name)
        for step in re.findall(r'step=~?"([^"]*)"', matchers):
            assert set(step.split("|")) <= {rung.name for rung in ILL.ladder}
    assert query.count("(") == query.count(")")
    assert query.count("{") == query.count("}")


def test_rules_have_what_prometheus_asks_for() -> None:
    for rule in rules():
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert re.fullmatch(r"Deltasmelt[A-Z]\w+", rule["alert"])
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}
        labels = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        names = re.findall(r"deltasmelt_\w+", rule["expr"])
        assert labels <= ({"job", "instance"} if not names else set.union(*map(labels_of, names)))


def test_vanished_process_fires_without_metrics() -> None:
    """Prometheus itself sets `up`: 0 if a target does not answer, absent without a target."""
    severities = {rule["expr"]: rule["labels"]["severity"] for rule in rules()}
    assert severities[f"{OF_THE_SCRAPE} == 0"] == "critical"
    assert severities[f"absent({OF_THE_SCRAPE})"] == "critical"
    assert "job_name: deltasmelt\n" in (ROOT / "docs" / "how-to" / "metrics.md").read_text(encoding="utf-8")


@pytest.mark.process
def test_wal_alerts_fire_per_cause_only() -> None:
    """No alert fires while the pipeline is well."""
    require_firing([exported(WELL)], set())
    open_for_hours = WalBudget(None, 250 << 30, 4096, None, None, reads=True, transactions="pid 1 (36,000 s)")
    holding = dataclasses.replace(WELL, wal=open_for_hours)
    require_firing([exported(holding)], {"DeltasmeltSlotGrows", "DeltasmeltSlotAtRisk"})
    less = dataclasses.replace(WELL, wal=dataclasses.replace(open_for_hours, held=11 << 30))
    require_firing([exported(less)], {"DeltasmeltSlotGrows", "DeltasmeltSlotHoldsMuch"})
    assert numbers(holding)["deltasmelt_slot_held_bytes",] == 250 << 30
    assert numbers(holding)["deltasmelt_behind_bytes", "step=slot confirmed"] == 4096, (
        "not what the slot holds"
    )


@pytest.mark.process
def test_alerts_that_nobody_takes_fire_as_metrics() -> None:
    webhook = Webhook(SecretStr("http://127.0.0.1:1/"), Patience(0.01, 0.02, 0.05))
    before = exported(WELL, webhook.counters)
    webhook.start()
    webhook.send(Alert("shop", "lag", "firing", "silver", "shop: silver is 9 min behind"))
    wait_for(lambda: webhook.counters["dropped"] == 1, 10)
    webhook.stop(1)
    require_firing([before, exported(WELL, webhook.counters)], {"DeltasmeltAlertsDropped"}, minutes=10)


@pytest.mark.process
def test_repeatedly_dying_reader_fires_despite_being_up() -> None:
    """Each poll sees the reader up."""
    texts = [exported(WELL, restarts=restarts) for restarts in (0, 4)]
    require_firing(texts, {"DeltasmeltReaderDies"})
    assert not [line for line in text(WELL, restarts=None).splitlines() if "restarts" in line], (
        "a command without a reader"
    )


def test_no_rule_depends_on_time_left() -> None:
    assert not [rule["alert"] for rule in rules() if "slot_left_seconds" in rule["expr"]]
    risks = [rule["expr"] for rule in rules() if "slot_risk" in rule["expr"]]
    assert risks
    assert all("max_over_time(deltasmelt_slot_risk[" in query for query in risks), "it goes up and down"


def test_dashboard_panels_do_not_overlap_and_name_source() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    occupied: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & occupied, panel["title"]
        assert max(x for x, _ in cells) < 24
        occupied |= cells
        assert {target["datasource"]["uid"] for target in [panel, *panel["targets"]]} == {"${datasource}"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_dashboard_or_a_rule_uses_most_metrics() -> None:
    used = {name for _, query in queries() for name in re.findall(r"deltasmelt_\w+", query)}
    assert known() - used <= {
        "deltasmelt_slot_exists", "deltasmelt_clustering_hints", "deltasmelt_bronze_held_bytes",
        "deltasmelt_snapshot_tables", "deltasmelt_snapshot_rows", "deltasmelt_snapshot_bytes",
        "deltasmelt_snapshot_left_seconds",
    }  # fmt: skip
