"""The Spark session that knows a catalog: given by whoever starts one, asked for by whoever opens a table.

Bronze knows no Spark. A lake of files never asks for a session; a lake in a catalog cannot be looked at
without one.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

SESSION_ENDED: Final = ("INVALID_HANDLE.SESSION_", "NO_ACTIVE_SESSION")
"""How conditions begin that say that a session at a server has ended: the server's, and the client's once it
knows."""

_SESSIONS: Final[dict[str, Callable[[], SparkSession]]] = {}
_LOCK: Final = threading.Lock()


def serve(catalog: str, session: Callable[[], SparkSession]) -> None:
    """Have a catalog's tables opened through a session from now on.

    Args:
        catalog: its name.
        session: gives the session; called each time one is needed, by any thread.
    """
    with _LOCK:
        _SESSIONS[catalog] = session


def session_of(catalog: str) -> SparkSession:
    """The session through which a catalog's tables are opened.

    Raises:
        ConfigurationError: ``catalog-session``: nobody gave one.
    """
    with _LOCK:
        found = _SESSIONS.get(catalog)
    if found is None:
        raise ConfigurationError(
            f"only a Spark session reaches the tables of catalog {catalog!r}, and none is there",
            code="catalog-session",
            where=catalog,
            remedy="run this command where Spark can be started, or give lake.path",
        )
    return found()


def is_local(master: str) -> bool:
    """Whether all tasks run in the driver's own JVM, on the machine whose files it sees.

    Args:
        master: Spark's address of it; ``local-cluster[2,1,1024]`` starts workers of their own.
    """
    return re.match(r"local(\[|$)", master) is not None
