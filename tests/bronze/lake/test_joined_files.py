"""Files that a compaction has joined: do they go although checkpoints forget their names after a day?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.lake import delta
from tests.benchmarks.jumping_clock import is_possible, run_with_clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_A_DAY_LATER: Final = """
import sys
from pathlib import Path
import pyarrow as pa
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.compaction import compact
from tests.benchmarks.jumping_clock import jump

schema = pa.schema([("n", pa.int64())])
table = delta.open_or_create(sys.argv[1], schema, description="")

def append(count):
    for n in range(count):
        table.append(pa.table({"n": [n]}, schema=schema))

def on_disk():
    return {file.name for file in Path(sys.argv[1]).glob("*.parquet")}

append(40)
assert compact(table, schema, many=32)
joined = on_disk() - set(table.paths())
assert len(joined) == 40
append(60)
assert joined < on_disk(), "a process may be reading an older version"
jump()
append(60)
table.tidy()
Path(sys.argv[2]).write_text(f"{len(joined & on_disk())} {set(table.paths()) == on_disk()}")
"""


@pytest.mark.process
@pytest.mark.skipif(not is_possible(), reason="needs Linux and a C compiler")
def test_joined_files_go_before_checkpoints_forget_them(tmp_path: Path) -> None:
    """A busy table makes a checkpoint between two calls of `tidy`, which finds files by the log alone."""
    result = tmp_path / "result"
    assert not run_with_clock(["-c", _A_DAY_LATER, str(tmp_path / "table"), str(result)], tmp_path)
    assert result.read_text() == "0 True"


def test_failed_deletion_stops_neither_commits_nor_checkpoints(tmp_path: Path) -> None:
    """Somebody may append to a lake without the right to delete."""
    schema = pa.schema([("n", pa.int64())])
    table = delta.open_or_create(str(tmp_path), schema, description="")

    def refuse(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if door is Effect.CLEAN:
            raise OSError("403")
        return effect()

    with guarded(refuse):
        for n in range(60):
            table.append(pa.table({"n": [n]}, schema=schema))
    assert list((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))
