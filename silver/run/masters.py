"""Where tasks run: in the JVM of the driver, and how many at once, or on machines that may be lost.

The addresses are those of Spark's documentation, `master URLs`_. ``local-cluster[2,1,1024]`` is not
local: it starts two workers as processes of their own.

.. _master URLs: https://spark.apache.org/docs/latest/submitting-applications.html#master-urls
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def is_local(master: str) -> bool:
    """Whether all tasks run in the driver's own JVM, on the machine whose files it sees."""
    return re.match(r"local(\[|$)", master) is not None


def setting(spark: SparkSession, name: str, default: str) -> str:
    """A setting of a session; the default also where a server does not tell it."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a job that folds nothing loads no Spark

    try:
        return spark.conf.get(name, default) or default
    except PySparkException:
        return default


def runs_locally(spark: SparkSession) -> bool:
    """Whether all tasks of a session run in the driver's JVM; no where a server does not tell its master."""
    return is_local(setting(spark, "spark.master", ""))


def computed(frame: DataFrame, *, now: bool = True) -> DataFrame:
    """Rows that are computed once for all their readers, with no way back to what they were made of.

    Spark keeps them where the task ran. A lost executor would take them along, and with them the statement
    that reads them. So on a cluster there are two copies, on two executors.

    Args:
        frame: gives the rows.
        now: compute them at once; else they are when they are first read.
    """
    if runs_locally(frame.sparkSession):
        return frame.localCheckpoint(now)
    from pyspark import StorageLevel  # noqa: PLC0415 - as above

    return frame.localCheckpoint(now, StorageLevel.MEMORY_AND_DISK_2)


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
