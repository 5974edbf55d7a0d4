"""A reader that kills its process at a named point: `python -m tests.torture.reader_driver JSON`.

The JSON names dsn, slot and lake. Optionally the JSON names the point of the kill, and how often the reader
must reach the point.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from deltasmelt.pipelines.without_pandas import load_pyarrow

load_pyarrow()  # as the product's own reader process does; a start takes half as long

from pydantic import SecretStr  # noqa: E402

import deltasmelt.bronze.stream.replication  # noqa: E402
import deltasmelt.bronze.stream.session  # noqa: E402
from deltasmelt.bronze.config.sections import BronzeSettings, SnapshotSettings, SourceSettings  # noqa: E402
from deltasmelt.bronze.lake.location import Lake  # noqa: E402
from deltasmelt.bronze.lsn import Lsn  # noqa: E402
from deltasmelt.bronze.reader.reader import Reader  # noqa: E402
from deltasmelt.bronze.reader.recovery import start_over  # noqa: E402


class Killer:
    """A callback that sends SIGKILL to this process when a point is reached for the n-th time."""

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
    # Small reads, batches and parts: transactions end up cut at every kind of place.
    vars(deltasmelt.bronze.stream.replication).update(_INPUT_BUFFER=1, _WAKE_BYTES=8192, _DRAIN_BYTES=16384)
    vars(deltasmelt.bronze.stream.session).update(FEED_BYTES=16384, WRITE_BYTES=20_000)
    source = SourceSettings(dsn=SecretStr(settings["dsn"]), slot=settings["slot"], publication="smelt")
    reader = Reader(
        "shop",
        source,
        Lake(settings["lake"]),
        BronzeSettings(flush_interval=0.05),
        SnapshotSettings(workers=2, chunk_rows=1000),
        reached=Killer(settings.get("point"), settings.get("times", 1)),
    )
    if settings.get("start_over"):
        start_over(source, Lake(settings["lake"]), "shop", reached=Killer(settings.get("point"), 1))
        return
    until = settings.get("until")
    reader.run(until=None if until is None else Lsn(until))


if __name__ == "__main__":
    main()
