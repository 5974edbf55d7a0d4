"""Facts about Spark sessions that bronze needs, without loading Spark."""

from __future__ import annotations

import re


def is_local(master: str) -> bool:
    """Check whether all tasks run in the driver's own JVM, on the machine whose files the driver sees."""
    # ``local-cluster[2,1,1024]`` starts separate workers and is not local.
    return re.match(r"local(\[|$)", master) is not None
