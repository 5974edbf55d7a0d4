"""The requests of an idle run on a lake in an object store; no Spark needed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NoReturn

import pytest

from deltasmelt.pipelines.runtime.stages import POLL_SECONDS_IN_STORES, Stages
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.silver.spark.lazy_session import LazySession
from tests.bronze.store.test_sink import at, open_sink

if TYPE_CHECKING:
    from pathlib import Path

    from tests.object_store import ObjectStore

pytestmark = pytest.mark.process

SOURCE = "source: {host: db, slot: s, publication: p}\n"


def no_spark() -> NoReturn:
    raise AssertionError("nothing needs Spark")


def test_poll_takes_single_request_per_second(store: ObjectStore, place: str, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yml"
    options = ", ".join(f"{name}: '{value}'" for name, value in store.options().items())
    file.write_text(f"pipeline: shop\n{SOURCE}lake: {{path: '{place}', options: {{{options}}}}}\n")
    pipeline = load_pipeline(file)
    sink = open_sink(place)
    sink.commit(at(10))
    stages = Stages(LazySession(no_spark), pipeline, [])
    stages.cycle()
    for _ in range(3):
        store.forget()
        assert not stages.cycle()
        assert [request.method for request in store.requests()] == ["GET"]
    for lsn in (20, 30):  # the first cut is read back once
        sink.commit(at(lsn))
        store.forget()
        stages.cycle()
    assert stages.reached(at(30).frontier)
    methods = Counter(request.method for request in store.requests())
    assert methods["PUT"] == 4, "the lease, that it is given back, and a cut"
    assert methods.total() <= 12
    assert POLL_SECONDS_IN_STORES >= 1
