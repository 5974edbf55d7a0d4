"""A wall clock that jumps, for every process of a run: a month of a pipeline in half an hour.

`jumping_clock.c` is compiled by the machine's C compiler and preloaded into a process and its children. Each
jump moves the wall clock of all of them at once, and makes every existing file older by the jump. So no
constant of the code changes: retentions, ages and the times of log entries are those of a real month. The
monotonic clock does not jump: waits and timeouts have their real length, and work between two jumps has its
real speed. PostgreSQL stays without the library, because it ends connections by the wall clock.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DAY: Final = 86_400
_SOURCE: Final = Path(__file__).with_suffix(".c")
_MOST: Final = 4096
_FILE: Final = "SMELT_CLOCK"
_PRELOAD: Final = "LD_PRELOAD"


def is_possible() -> bool:
    """Check whether this machine can compile and preload the library."""
    return sys.platform == "linux" and shutil.which("cc") is not None


def run_with_clock(arguments: Sequence[str], folder: Path) -> int:
    """Run a Python program with a clock that the program moves (`jump`); return its exit code."""
    library, file = folder / "clock.so", folder / "clock"
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"],
        check=True,
    )
    file.write_bytes(struct.pack("<qq", 0, DAY).ljust((_MOST + 2) * 8, b"\0"))
    environment = {**os.environ, _FILE: str(file), _PRELOAD: str(library)}
    return subprocess.run([sys.executable, *arguments], env=environment, check=False).returncode


def jump() -> None:
    """Move the clock of this process, and of all processes with the same file, by a day."""
    with Path(os.environ[_FILE]).open("r+b") as file, mmap.mmap(file.fileno(), 0) as table:
        (count,) = struct.unpack_from("<q", table)
        now = time.time_ns() - count * DAY * 1_000_000_000
        struct.pack_into("<q", table, 16 + 8 * count, now)
        struct.pack_into("<q", table, 0, count + 1)


@contextmanager
def real_clock() -> Iterator[None]:
    """Start processes with the machine's own clock within the block."""
    library = os.environ.pop(_PRELOAD, None)
    try:
        yield
    finally:
        if library is not None:
            os.environ[_PRELOAD] = library
