"""Make a lake older: move all timestamps of its logs, files and cuts back."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_TIMES = re.compile(r'("(?:deletionTimestamp|modificationTime|timestamp)":)(\d{13})')


def age(spark: SparkSession, lake: Path, *, days: int = 0, hours: int = 0) -> None:
    """Move the lake's whole past back by days and hours. The logs must not have checkpoints yet."""
    seconds = days * 86400 + hours * 3600
    tables = [table for layer in ("silver", "gold") for table in lake.glob(f"{layer}/*")]
    for table in tables:
        assert not list(table.glob("_delta_log/*.checkpoint*.parquet"))
        for path in [path for path in table.rglob("*") if path.is_file()]:
            if path.name.endswith(".crc"):
                path.unlink()  # sums of what is about to change
                continue
            time = path.stat().st_mtime
            if path.suffix == ".json":
                path.write_text(
                    _TIMES.sub(lambda one: f"{one[1]}{int(one[2]) - seconds * 1000}", path.read_text())
                )
            os.utime(path, (time - seconds, time - seconds))
    DeltaTable(str(lake / "control" / "cuts")).update(
        updates={"recorded_at": f"recorded_at - INTERVAL '{seconds} seconds'"}
    )
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
