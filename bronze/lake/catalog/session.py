"""Facts about Spark sessions that bronze needs, without loading Spark."""

from __future__ import annotations

import re
from typing import Final

SESSION_ENDED: Final = ("INVALID_HANDLE.SESSION_", "NO_ACTIVE_SESSION")
"""How conditions begin that say that a session at a server has ended: the server's, and the client's once it
knows."""


def is_local(master: str) -> bool:
    """Whether all tasks run in the driver's own JVM, on the machine whose files it sees.

    Args:
        master: Spark's address of it; ``local-cluster[2,1,1024]`` starts workers of their own.
    """
    return re.match(r"local(\[|$)", master) is not None
