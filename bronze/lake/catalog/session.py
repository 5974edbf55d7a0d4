"""Facts about Spark sessions that bronze needs, without loading Spark."""

from __future__ import annotations

import re


def is_local(master: str) -> bool:
    """Whether all tasks run in the driver's own JVM, on the machine whose files it sees.

    Args:
        master: Spark's address of it; ``local-cluster[2,1,1024]`` starts workers of their own.
    """
    return re.match(r"local(\[|$)", master) is not None
