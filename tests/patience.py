"""Waiting for the effect of another thread or process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def wait_for(condition: Callable[[], object], seconds: float = 500) -> None:
    """Wait until the condition holds; fail the test when the time has passed."""
    start = time.monotonic()
    while not condition():
        waited = time.monotonic() - start
        assert waited < seconds, "waited in vain"
        time.sleep(0.02 if waited < 5 else 0.1)


def runs(pid: int) -> bool:
    """Check whether a process runs; a zombie may stay where process 1 awaits no orphans."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
