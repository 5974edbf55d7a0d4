"""A reader that kills its process at a named point: `python -m tests.torture.reader_driver JSON`.

The JSON names dsn, slot, lake and, where it shall die, point and the how-manieth time that it is reached.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from pydantic import SecretStr

import bronze.stream
from bronze.lake import Lake
from bronze.lsn import Lsn
from bronze.reader import Reader
from bronze.settings import BronzeSettings, SnapshotSettings, SourceSettings


class Killer:
    """Sends SIGKILL to its own process when a point is reached for the n-th time."""

    def __init__(self, point: str | None, times: int) -> None:
        self._point = point
        self._left = times
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        if point == self._point:
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Read until the LSN in the settings, or until killed."""
    settings = json.loads(sys.argv[1])
    vars(bronze.stream)["WRITE_BYTES"] = 20_000  # small parts, so that there are many
    source = SourceSettings(dsn=SecretStr(settings["dsn"]), slot=settings["slot"], publication="smelt")
    reader = Reader(
        "shop",
        source,
        Lake(settings["lake"]),
        BronzeSettings(flush_interval=0.05),
        SnapshotSettings(workers=2, chunk_rows=1000),
        reached=Killer(settings.get("point"), settings.get("times", 1)),
    )
    until = settings.get("until")
    reader.run(until=None if until is None else Lsn(until))


if __name__ == "__main__":
    main()
