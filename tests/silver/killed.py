"""Cycles that end at a named point: inside a test by an exception, or as a process that kills itself.

Points are calls of a cycle: statements by their first word, a table's creation, the record of runs and of the
cut. The product does not know the points; this module wraps the calls.

``python -m tests.silver.killed LAKE POINT`` starts a process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.pipelines.spark.session import spark_session
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.run.writer import Writer
from deltasmelt.silver.settings import SilverSettings
from tests.fix_spark import rows_of
from tests.silver.histories import BronzeWriter
from tests.silver.stored import cells_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deltasmelt.bronze.lake.control import Cut


class EndedError(BaseException):
    """No code may catch this error, as no code catches a kill."""


def end() -> None:
    raise EndedError


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def ending(point: str, stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at a point: ``before MERGE 2``, ``during INSERT 1``, ``after CUT 1``."""
    when, kind, number = point.split()
    statement_count = 0
    lock = threading.Lock()

    def wrapped(original: Any, *, always: bool) -> Any:
        def call(self: Any, *args: Any, **named: Any) -> Any:
            nonlocal statement_count
            with lock:
                hit = always or args[0].lstrip().startswith(kind)
                statement_count += hit
                hit = hit and statement_count == int(number)
            if hit and when == "before":
                stop()
            if hit and when == "during":
                threading.Timer(0.5, stop).start()
            result = original(self, *args, **named)
            if hit and when == "after":
                stop()
            return result

        return call

    calls: dict[str, tuple[type, str]] = {
        "CREATE": (Writer, "create"),
        "CUT": (ControlTables, "record_cut"),
        "RUNS": (ControlTables, "record_runs"),
    }
    owner, name = calls.get(kind, (SparkSession, "sql"))
    with patch.object(owner, name, wrapped(getattr(owner, name), always=kind in calls)):
        yield


class KilledStage(ABC):
    """A lake whose cycles end at points, and whose history continues from one test to the next."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark, self.lake = spark, Lake(path=path)
        self.control, self.bronze = ControlTables(self.lake), BronzeWriter(self.lake)
        self.lsn = 10

    @abstractmethod
    def write(self) -> None:
        """Write more changes."""

    @abstractmethod
    def check(self, cut: Cut | None) -> None:
        """Check that the cut equals the written changes."""

    @abstractmethod
    def settings(self) -> SilverSettings:
        """Return the settings of all cycles without explicit settings."""

    def silver(self, settings: SilverSettings | None = None) -> Silver:
        return Silver(self.spark, self.lake, settings or self.settings(), self.control)

    def end_at(self, point: str, settings: SilverSettings | None = None) -> None:
        silver = self.silver(settings)
        with ending(point, end), pytest.raises(EndedError):
            silver.cycle()
        silver.close()  # as in a kill, nothing of it goes on beside the next one

    def ends_at_and_goes_on(self, point: str) -> None:
        """End a cycle at a point, and check that the next cycle carries all earlier changes."""
        before = self.control.latest_cut("silver")
        self.end_at(point)
        latest = self.control.latest_cut("silver")
        if point == "after CUT 1":
            self.check(latest)
            assert self.silver().cycle() is None
            return
        assert latest == before
        self.write()  # the next cycle begins with more than the last one saw
        self.check(self.silver().cycle())

    def read(self, name: str, columns: str, cut: Cut) -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM {self.lake.sql('silver', name)} VERSION AS OF {cut.tables[name]}"
        return sorted(tuple(row) for row in rows_of(self.spark, query))

    def stored(self, name: str, columns: str, cut: Cut) -> list[tuple[Any, ...]]:
        """Return columns of a table's rows at a cut, from the table's files."""
        return cells_at(self.spark, self.lake, name, columns, cut.tables[name])


def main(path: str, point: str) -> None:
    spark = spark_session({"spark.driver.memory": "2g", "spark.master": "local[2]"}, brief=True)
    lake = Lake(path=path)
    with ending(point, kill):
        Silver(spark, lake, SilverSettings(), ControlTables(lake)).cycle()
    sys.exit("the point was not reached")


if __name__ == "__main__":
    main(*sys.argv[1:])
