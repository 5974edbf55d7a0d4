"""How the reader's process asks the system for memory, and gives it back."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

_M_ARENA_MAX: Final = -8


def _glibc() -> Any:
    """The C library, where it is glibc; None elsewhere (musl has one arena and gives back by itself)."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
        return library and library.mallopt and library.malloc_trim and library
    return None


_GLIBC: Final = _glibc()


def configure_allocators() -> None:
    """Choose allocators for large buffers that come and go; to be called before threads are started.

    Arrow's own pool keeps more than the system's allocator. glibc's gives each thread an arena, and each of
    them keeps what it once needed (mallopt(3)); one for all cost no time that could be measured.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    if _GLIBC is not None:
        _GLIBC.mallopt(_M_ARENA_MAX, 1)


def release() -> None:
    """Return what is free to the system.

    Free pieces between longer-lived ones stay with the process otherwise: 60 of 200 MiB after a million
    changes.
    """
    if _GLIBC is not None:
        _GLIBC.malloc_trim(0)
