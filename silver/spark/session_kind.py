"""Where tasks run: in the JVM of the driver, and how many at once, or on machines that may be lost.

A session may be one at a `Spark Connect`_ server. Then driver and files of this machine have nothing to do
with each other, whatever master the server has: it may run anywhere.

The addresses are those of Spark's documentation, `master URLs`_. ``local-cluster[2,1,1024]`` is not
local: it starts two workers as processes of their own.

.. _master URLs: https://spark.apache.org/docs/latest/submitting-applications.html#master-urls
.. _Spark Connect: https://spark.apache.org/docs/latest/spark-connect-overview.html
"""

from __future__ import annotations

import logging
import re
import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.lake.catalog.session import is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession


_LOGGER: Final = logging.getLogger("deltasmelt.session")
_CONNECT: Final = "pyspark.sql.connect.session"
"""Module of the sessions of Spark Connect; it is loaded where there is one."""

_UNSUPPORTED: Final = ("NOT_SUPPORTED", "UNSUPPORTED", "NOT_IMPLEMENTED", "FEATURE_NOT_ENABLED")
"""How conditions begin by which a server says that it keeps no rows, as serverless compute does."""


def setting(spark: SparkSession, name: str, default: str) -> str:
    """A setting of a session; the default also where a server does not tell it."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a job that folds nothing loads no Spark

    try:
        return spark.conf.get(name, default) or default
    except PySparkException:
        return default


def runs_locally(spark: SparkSession) -> bool:
    """Whether all tasks of a session run in the driver's JVM, and that sees the files of this machine."""
    return not is_remote(spark) and is_local(setting(spark, "spark.master", ""))


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is one at a Spark Connect server: its classes are apart from a JVM's session."""
    module: Any = sys.modules.get(_CONNECT)
    return module is not None and isinstance(spark, module.SparkSession)


def all_settings(spark: SparkSession) -> dict[str, str]:
    """The settings that a session has, as far as it tells them: a property here, a method of Connect's."""
    known: Any = spark.conf.getAll
    return dict(known() if callable(known) else known)


def computed(frame: DataFrame, *, now: bool = True) -> DataFrame:
    """Rows that are computed once for all their readers, with no way back to what they were made of.

    Spark keeps them where the task ran. A lost executor would take them along, and with them the statement
    that reads them. So on a cluster there are two copies, on two executors. Where a server keeps no rows,
    each reader computes them: they are those of pinned versions, and the same each time.

    Args:
        frame: gives the rows.
        now: compute them at once; else they are when they are first read.
    """
    if is_local(setting(frame.sparkSession, "spark.master", "")):
        keep = frame.localCheckpoint
    else:
        from pyspark import StorageLevel  # noqa: PLC0415 - as above

        keep = partial(frame.localCheckpoint, storageLevel=StorageLevel.MEMORY_AND_DISK_2)
    with _active(frame.sparkSession):
        kept = kept_or_not(lambda: keep(now))
    return frame if kept is None else kept


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session at a server the active one of this thread for a while.

    Spark Connect's client takes rows that a server has kept for those of the active session, whichever asked.
    """
    held: Any = getattr(spark, "_active_session", None) if is_remote(spark) else None
    if held is None:
        yield
        return
    before = getattr(held, "session", None)
    held.session = spark
    try:
        yield
    finally:
        held.session = before


def kept_or_not(keep: Callable[[], DataFrame]) -> DataFrame | None:
    """A frame whose rows are kept; None where the server keeps none.

    Args:
        keep: has them kept.

    Raises:
        PySparkException: something else failed.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    try:
        return keep()
    except PySparkException as error:
        if not (error.getCondition() or "").startswith(_UNSUPPORTED):
            raise
        _LOGGER.info("rows are not kept here: %s", error.getCondition())
        return None


def cores_of(master: str, *, machine: int) -> int:
    """Tasks that a local master runs at once: ``local[2]``, ``local[*]``; 1 where it says no number.

    Args:
        master: its address.
        machine: cores of the machine.
    """
    found = re.match(r"local\[(\d+|\*)", master)
    if found is None:
        return 1
    return machine if found[1] == "*" else int(found[1])
