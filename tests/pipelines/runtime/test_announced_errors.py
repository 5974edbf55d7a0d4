"""A continuous run announces errors of tables and documents; no Spark needed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NoReturn

from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.runtime import stages as stages_module
from deltasmelt.pipelines.runtime.stages import Stages
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.silver.spark.lazy_session import LazySession
from tests.bronze.store.test_sink import at, open_sink

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def no_spark() -> NoReturn:
    raise AssertionError("nothing needs Spark")


def test_new_errors_are_announced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages_module, "_POLLS_PER_READ_OF_ERRORS", 1)
    file = tmp_path / "pipeline.yml"
    file.write_text("pipeline: p\nsource: {host: db, slot: s, publication: p}\nlake: {path: lake}\n")
    pipeline = load_pipeline(file)
    open_sink(str(tmp_path / "lake")).commit(at(10))
    control, stop, lines = ControlTables(pipeline.lake_address()), threading.Event(), list[str]()
    control.open_error(OpenError("table", "public.t", "table-without-key", "no key", "add one"))
    secret = "no SELECT at postgresql://me:hidden@db/shop"
    later = [
        [OpenError("document", "d", "document-invalid", "no column")],
        [OpenError("table", f"public.u{number}", "table-privilege", secret) for number in range(7)],
    ]

    def announce(text: str) -> None:
        lines.append(text)
        control.restate_error(OpenError("table", "public.t", "table-without-key", f"still {len(lines)}"))
        if later:
            control.record_errors(later.pop(0))
        elif text.startswith("2 more"):
            stop.set()

    Stages(LazySession(no_spark), pipeline, [], announce=announce).carry(lambda: None, stop)
    assert lines == [
        "table public.t: no key [table-without-key]\n  remedy: add one",
        "document d: no column [document-invalid]",
        *(
            f"table public.u{number}: no SELECT at postgresql://me:***@db/shop [table-privilege]"
            for number in range(5)
        ),
        "2 more new errors; `smelt status` shows each with its remedy",
    ]
