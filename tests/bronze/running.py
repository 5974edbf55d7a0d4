"""A reader on a thread of the test, and waits for its progress."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

from deltasmelt.bronze.lsn import Lsn
from tests.bronze.replaying import fetch, make_reader
from tests.patience import wait_for

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings


def confirmed(source: SourceSettings) -> Lsn:
    query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    return Lsn.parse(fetch(source, query, source.slot))


class Running:
    """A reader that runs on a thread until the block ends."""

    def __init__(self, source: SourceSettings, lake_path: str, **more: Any) -> None:
        self.reader = make_reader(source, lake_path, **more)
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.reader.run(stop=self._stop)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        wait_for(lambda: self.error is not None or self.reader.progress.read()["phase"] == "streaming")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def wait_until_failed(self) -> BaseException:
        self._thread.join(60)
        assert self.error is not None
        return self.error
