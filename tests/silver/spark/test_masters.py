"""Test what a master's address tells about its tasks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deltasmelt.bronze.lake.catalog.session import is_local
from deltasmelt.silver.spark.access import computed_with
from deltasmelt.silver.spark.tuning import cores_of, runs_tasks_once


@pytest.mark.parametrize(
    ("master", "local", "cores", "once"),
    [
        ("local", True, 1, True),
        ("local[2]", True, 2, True),
        ("local[*]", True, 8, True),
        ("local[4,2]", True, 4, False),
        ("local[*, 4]", True, 8, False),
        ("local-cluster[2,1,1024]", False, 1, False),
        ("spark://127.0.0.1:7077", False, 1, False),
        ("yarn", False, 1, False),
        ("k8s://https://local", False, 1, False),
        ("", False, 1, False),
    ],
)
def test_master_is_local_if_driver_runs_tasks(master: str, *, local: bool, cores: int, once: bool) -> None:
    assert (is_local(master), cores_of(master, machine=8), runs_tasks_once(master)) == (local, cores, once)


class Rows:
    """Three rows, whose job counted none: a repeated task found its rows stored."""

    def __init__(self, master: str) -> None:
        conf = {"spark.master": master}
        self.sparkSession = SimpleNamespace(conf=conf)
        metrics = SimpleNamespace(isEmpty=lambda: False, get=lambda: SimpleNamespace(json=lambda: '{"n": 0}'))
        execution = SimpleNamespace(observedMetrics=lambda: {"deltasmelt": metrics})
        self._jdf = SimpleNamespace(queryExecution=lambda: execution)

    def observe(self, *_: object) -> Rows:
        return self

    def localCheckpoint(self, *_: object, **_storage: object) -> Any:  # noqa: N802 - PySpark's name
        return SimpleNamespace(selectExpr=lambda _: SimpleNamespace(collect=lambda: [self]))

    def asDict(self) -> dict[str, int]:  # noqa: N802 - PySpark's name
        return {"n": 3}


@pytest.mark.parametrize(
    ("master", "count"), [("local[*]", 0), ("local[2,4]", 3), ("local-cluster[2,1,1024]", 3), ("yarn", 3)]
)
def test_metrics_count_only_where_tasks_run_once(
    master: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.sql.functions.expr", str)
    rows: Any = Rows(master)
    assert computed_with(rows, ["count(*) AS n"])[1] == {"n": count}
