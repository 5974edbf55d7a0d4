"""How far a snapshot is, and what threatens the slot: in words, before it happens."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING

import pytest

from bronze.lake.location import Lake
from bronze.lsn import Lsn
from bronze.progress import Progress, snapshot_view
from bronze.setup.slot import SlotState
from pipelines.health.slot_words import slot_warnings
from pipelines.health.status import Status
from pipelines.runtime.progress_text import snapshot_text
from pipelines.runtime.reader_progress import read_progress, write_progress

if TYPE_CHECKING:
    from pathlib import Path

SLOT = SlotState("s", "pgoutput", Lsn(1), None, "extended", 1000)
STATUS = Status("p", "s", None, "l", None, (), SLOT, None, None, (), (), ())


def test_the_time_left_is_that_of_the_tables_under_way() -> None:
    progress = Progress()
    progress.copying("public.big", 1000, 4)
    progress.copying("public.small", 0, 2)
    progress.copied("public.big", 500, 4096)
    progress.chunk_copied("public.small")
    said = progress.read()["snapshots"]
    view = snapshot_view(said, said["public.big"]["started"] + 30)
    assert view is not None
    assert (view.rows, view.bytes, view.tables) == (500, 4096, ("public.big", "public.small"))
    assert view.fraction == pytest.approx(0.5, abs=0.01)
    assert view.seconds_left == pytest.approx(30, abs=1)
    assert snapshot_text(view).startswith("snapshot: 500 rows, 4.1 kB, 50%, about 30")
    progress.copy_done("public.small")
    progress.copy_done("public.big")
    assert snapshot_view(progress.read()["snapshots"], time.time()) is None


def test_another_process_sees_it_while_it_is_fresh(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    progress = Progress()
    progress.copying("public.t", 10)
    progress.copied("public.t", 5)
    write_progress(lake, progress.read())
    assert read_progress(lake) is None  # there is no lake yet, and none is made for this
    (tmp_path / ".locks").mkdir()
    write_progress(lake, progress.read())
    view = read_progress(lake)
    assert view is not None
    assert (view.rows, view.tables) == (5, ("public.t",))
    path = tmp_path / ".locks" / "progress.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "at": time.time() - 60}))
    assert read_progress(lake) is None
    assert read_progress(Lake("s3://bucket/lake")) is None


def test_a_slot_in_danger_is_said_before_it_is_lost() -> None:
    assert slot_warnings(STATUS) == []
    (soon,) = slot_warnings(dataclasses.replace(STATUS, slot_seconds_left=30.0))
    assert "lost in 30 s" in soon
    assert "max_slot_wal_keep_size" in soon
    unreserved = dataclasses.replace(STATUS, slot=dataclasses.replace(SLOT, wal_status="unreserved"))
    assert "next checkpoint" in slot_warnings(unreserved)[0]
    lost = dataclasses.replace(STATUS, slot=dataclasses.replace(SLOT, wal_status="lost"))
    assert slot_warnings(lost) == []
