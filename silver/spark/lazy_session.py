"""A Spark session that starts when it is first needed: a job that finds nothing to do needs none.

Delta's logs say what there is to do, and they are read without Spark. So whoever may need a session is given
this, and asks for it (`LazySession.get`) once there is something to run.

A start that failed says nothing of the table or document whose turn it was. It is kept (`failure`), so that
those who put errors down to a table can tell it from one.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_LOGGER = logging.getLogger("deltasmelt.session")


class LazySession:
    """A session that is started once, by the first thread that needs it; the others wait for it.

    Args:
        start: starts it.
        meaning: all that decides how it will understand statements, as a text; None where only the session
            itself can tell.

    Attributes:
        meaning: as given.
        failure: what ended the start, if it failed.
    """

    def __init__(self, start: Callable[[], SparkSession], *, meaning: str | None = None) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._prepared = False
        self.meaning = meaning
        self.failure: Exception | None = None
        self.started = False

    def get(self) -> SparkSession:
        """The session; starts it where that has not happened.

        Raises:
            Exception: why it could not be started; the same one each time.
        """
        with self._lock:
            if self.failure is not None:
                raise self.failure
            if self._session is None:
                try:
                    self._session = self._start()
                except Exception as error:
                    self.failure = error
                    raise
                self.started = True
            return self._session

    def prepare(self) -> None:
        """Start it in the background: it will be needed. A failure is raised to whoever needs it."""
        if not self._prepared and not self.started:
            self._prepared = True
            threading.Thread(target=self._prepare, name="spark-start", daemon=True).start()

    def _prepare(self) -> None:
        try:
            self.get()
        except Exception as error:  # noqa: BLE001 - kept, and raised again by `get`
            _LOGGER.info("Spark could not be started ahead of time: %s", error)


def lazily(spark: SparkSession | LazySession) -> LazySession:
    """A session that is there already, as one that is got when needed; one of these as it is."""
    if isinstance(spark, LazySession):
        return spark
    given = LazySession(lambda: spark)
    given.get()
    return given
