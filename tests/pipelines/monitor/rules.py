"""Prometheus rules that fire on the product's metrics: by `promtool`, else only the plainest rules."""

from __future__ import annotations

import json
import operator
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from deltasmelt.pipelines.monitor.metrics import exposition
from deltasmelt.pipelines.monitor.samples import Samples
from deltasmelt.pipelines.monitor.watch import why_not_ready
from tests.docs.blocks import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltasmelt.pipelines.health.status import Status

RULES: Final = ROOT / "conf" / "prometheus" / "deltasmelt.rules.yml"
_PLAIN: Final = re.compile(r"(deltasmelt_\w+)(?:\{(\w+)=\"(\w+)\"\})? (==|>) (\S+)")
_COMPARED: Final = {"==": operator.eq, ">": operator.gt}


def rules() -> list[dict[str, Any]]:
    """Return all rules of the file."""
    (group,) = YAML(typ="safe").load(RULES.read_text(encoding="utf-8"))["groups"]
    assert set(group) == {"name", "rules"}
    parsed: list[dict[str, Any]] = group["rules"]
    return parsed


def exported(
    status: Status, counters: Mapping[str, int] | None = None, *, restarts: int | None = None
) -> str:
    """Return the metrics of a command of all layers just after a read of the status."""
    samples, layers = Samples(), ("bronze", "silver", "gold")
    samples.add(status, took=0.03)
    view = samples.view(dict.fromkeys(layers, True))
    ready = not why_not_ready(view, layers, 300.0)
    counters = counters or {}
    return exposition(view, status.pipeline, ready=ready, counters=counters, restarts=restarts).decode()


def require_firing(texts: Sequence[str], expected: set[str], *, minutes: int = 20) -> None:
    """Require that exactly the expected alerts fire after each text was exported for some minutes.

    Without `promtool` (Debian's package `prometheus`), only evaluate rules of the plainest form.
    """
    if shutil.which("promtool") is None:
        firing = _held(texts[-1])
        assert firing <= expected
        assert firing or not expected or len(texts) > 1
        return
    series: dict[str, list[float]] = {}
    for number, text in enumerate(['up{job="deltasmelt"} 1\n' + text for text in texts]):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(
                    f"{name}={json.dumps(value)}" for name, value in sorted(sample.labels.items())
                )
                series.setdefault(f"{sample.name}{{{labels}}}", [-1.0] * number).append(sample.value)
    tests = {
        "rule_files": [str(RULES)],
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": name, "values": " ".join(f"{value}x{minutes - 1}" for value in values)}
                    for name, values in series.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{minutes * len(texts) - 1}m",
                        "exp_samples": [
                            {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(expected)
                        ],
                    }
                ],
            }
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rules_test.yml"
        file.write_text(json.dumps(tests), encoding="utf-8")
        process = subprocess.run(
            ["promtool", "test", "rules", file], check=False, capture_output=True, text=True
        )
    assert process.returncode == 0, process.stdout + process.stderr


def _held(text: str) -> set[str]:
    names = set()
    for rule in rules():
        plain = _PLAIN.fullmatch(rule["expr"])
        if plain is None:
            continue
        name, label, value, compared, limit = plain.groups()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                meant = sample.name == name and (label is None or sample.labels[label] == value)
                if meant and _COMPARED[compared](sample.value, float(limit)):
                    names.add(rule["alert"])
    return names
