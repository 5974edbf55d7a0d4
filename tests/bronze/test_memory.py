"""Memory that the allocators of a process keep for later."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_THREADS_THAT_ALLOCATE: Final = """
import ctypes, pathlib, sys, tempfile, threading
from deltasmelt.bronze.memory import use_one_arena, release

if sys.argv[1] == "configured":
    use_one_arena()
meeting = threading.Barrier(12)

def work():
    pieces = [bytes(2000) for _ in range(4000)]
    meeting.wait()
    del pieces

threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
release()
library, file = ctypes.CDLL(None), pathlib.Path(tempfile.mkdtemp()) / "malloc.xml"
library.fopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(library.fopen(str(file).encode(), b"w"))
library.malloc_info(0, stream)
library.fclose(stream)
print(file.read_text().count("<heap nr"))
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's arenas")
def test_threads_of_a_configured_process_share_one_arena() -> None:
    """Each further arena would keep the peak memory of its threads."""

    def arenas(mode: str) -> int:
        command = [sys.executable, "-c", _THREADS_THAT_ALLOCATE, mode]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    assert arenas("configured") <= 2 < arenas("as it is")


_PARQUET: Final = """
import io, sys
from contextlib import suppress
{start}
import pyarrow as pa, pyarrow.parquet as pq
pq.write_table(pa.table({{"a": list(range(10_000))}}), io.BytesIO())
print(pa.default_memory_pool().backend_name, pa.mimalloc_memory_pool().max_memory())
"""
_COMMAND: Final = """
from deltasmelt.pipelines import cli
sys.argv = ["smelt", "{name}", "pipeline.yml"]
with suppress(SystemExit):
    cli.main()
"""
_READER: Final = """
from deltasmelt.pipelines.runtime import reader_process
sys.stdin.close()
reader_process.main()
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "start",
    [_COMMAND.format(name="status"), _COMMAND.format(name="maintain"), _READER],
    ids=["status", "maintain", "reader"],
)
def test_arrow_allocates_nothing_on_its_own(tmp_path: Path, start: str) -> None:
    """The writer of Parquet files asks Arrow's default allocator, whatever Python's calls use."""
    text = "pipeline: p\nsource: {dsn: postgresql://nowhere/d}\nlake: {path: ./lake}\n"
    (tmp_path / "pipeline.yml").write_text(text)
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "", "SMELT_LOGS": str(tmp_path)}
    command = [sys.executable, "-c", _PARQUET.format(start=start)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # where the reader redirects its output to
        text=True,
        check=False,
    )
    assert done.stdout.split()[-2:] == ["system", "0"], done.stdout
