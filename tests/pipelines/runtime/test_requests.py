"""What a run that waits for changes costs where its lake is in an object store; no Spark is needed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import pytest

from bronze.lake.stores import register
from pipelines.runtime.stages import POLL_SECONDS_IN_STORES, Stages
from pipelines.settings import load_pipeline
from silver.run.lazy_session import LazySession
from tests.bronze.store.test_sink import at, open_sink

if TYPE_CHECKING:
    from pathlib import Path

    from tests.object_store import ObjectStore

pytestmark = pytest.mark.process

ROOT = "s3://lake/shop"
SOURCE = "source: {host: db, slot: s, publication: p}\n"


def no_spark() -> NoReturn:
    raise AssertionError("nothing needs Spark")


def test_a_look_for_new_changes_takes_one_request_and_comes_once_a_second(
    store: ObjectStore, tmp_path: Path
) -> None:
    file = tmp_path / "pipeline.yml"
    options = ", ".join(f"{name}: '{value}'" for name, value in store.options().items())
    file.write_text(f"pipeline: shop\n{SOURCE}lake: {{path: '{ROOT}', options: {{{options}}}}}\n")
    pipeline = load_pipeline(file)
    register(ROOT, store.options())
    sink = open_sink(ROOT)
    sink.commit(at(10))
    stages = Stages(LazySession(no_spark), pipeline, [])
    stages.cycle()
    for _ in range(3):
        store.forget()
        assert not stages.cycle()
        assert [one.method for one in store.requests()] == ["HEAD"]
    sink.commit(at(20))
    store.forget()
    stages.cycle()
    assert stages.reached(at(20).frontier)
    assert POLL_SECONDS_IN_STORES >= 1
