"""Bronze, carried to where the source's rows are while these are read and Spark starts."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from pipelines.runtime.reached import reach

if TYPE_CHECKING:
    from bronze.lsn import Lsn
    from pipelines.proof.source_copy import SourceCopy
    from pipelines.settings import Pipeline
    from pipelines.terminal.output import Output

_LOOK_SECONDS: Final = 0.1
_LONG_SECONDS: Final = 86_400.0


class CatchingUp(threading.Thread):
    """Has bronze reach the first snapshot's LSN while its rows are read and Spark starts."""

    def __init__(self, pipeline: Pipeline, copy: SourceCopy, output: Output, command: str) -> None:
        super().__init__(name="smelt-verify-bronze", daemon=True)
        self._pipeline = pipeline
        self._copy = copy
        self._output = output
        self._command = command
        self._failure: BaseException | None = None
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Until it is there, or the copy has ended without a snapshot."""
        try:
            lsn = self._copy.exported(_LONG_SECONDS)
            if lsn is not None:
                self.reach(lsn)
        except BaseException as error:  # noqa: BLE001 - raised by `check`
            self._failure = error

    def reach(self, lsn: Lsn) -> None:
        """Return when bronze is there, or it was told to stop."""
        reach(self._pipeline, lsn, self._output, self._command, self._stop_asked)

    def stop(self) -> None:
        """Have it end soon."""
        self._stop_asked.set()

    def check(self) -> None:
        """Raise what ended it.

        Raises:
            SmeltError: what stopped the reader.
        """
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        """Wait for its end; raises as `check`."""
        while self.is_alive():
            self.join(_LOOK_SECONDS)
        self.check()
