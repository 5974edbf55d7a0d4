"""Configure how a process of a pipeline requests memory from the system and returns memory.

The reader and `smelt run` live for months, and start threads again and again. A program that calls
`deltasmelt` as a library decides about its allocators itself.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from typing import Any, Final

_M_ARENA_MAX: Final = -8
_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"


def _glibc() -> Any:
    """Return the C library if it is glibc, else None: musl has one arena and returns memory by itself."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
        return library and library.mallopt and library.malloc_trim and library
    return None


_GLIBC: Final = _glibc()


def choose_arrow_allocator() -> None:
    """Let Arrow use the system's allocator, unless the environment names another; call before other imports.

    Arrow's own allocator returns no memory to the system: a process that ran for weeks grew by a MiB a day.
    Arrow's functions choose once, when pyarrow is loaded. Where pyarrow is loaded already, as in a job of
    Databricks, calls from Python alone can still change; the writer of Parquet files cannot.
    """
    if os.environ.get(_POOL):
        return
    os.environ[_POOL] = "system"
    if (pa := sys.modules.get("pyarrow")) is not None:
        pa.set_memory_pool(pa.system_memory_pool())


def use_one_arena() -> None:
    """Let all threads share one arena of the C library; call before threads start."""
    if _GLIBC is not None:
        # Each thread of glibc gets one of eight arenas a core, and each arena keeps the peak memory of its
        # threads (mallopt(3)): the same 3 MiB once more in each. A single arena for all threads cost no
        # measurable time.
        _GLIBC.mallopt(_M_ARENA_MAX, 1)


def release() -> None:
    """Return free memory to the system.

    Otherwise free pieces between longer-lived pieces stay with the process: 60 of 200 MiB after a million
    changes.
    """
    if _GLIBC is not None:
        _GLIBC.malloc_trim(0)
