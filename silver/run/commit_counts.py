"""Read the row counts of a commit, and check a MERGE of known rows for missing rows. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from deltasmelt.bronze.lake.catalog import commit_marks
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.silver.run.marks import KNOWN_AFTER

_KNOWN_FROM: Final = re.compile(r"deltasmelt: known rows after (\d+)")

_MERGE_METRICS: Final = {
    "inserts": "numTargetRowsInserted",
    "updates": "numTargetRowsUpdated",
    "deletes": "numTargetRowsDeleted",
}


def rows_changed(entry: dict[str, Any]) -> dict[str, int]:
    """Return a commit's numbers of rows, by the keys ``inserts``, ``updates`` and ``deletes``."""
    return _counted(
        entry, {"inserts": "numOutputRows"} if entry.get("operation") == "WRITE" else _MERGE_METRICS
    )


def lacking(entry: dict[str, Any]) -> Lsn | None:
    """Return the LSN at which the window of a MERGE of known rows began, if the MERGE missed rows."""
    begun = _known_after(entry)
    found = _counted(entry, _MERGE_METRICS | {"source": "numSourceRows"})
    return begun if begun is not None and found["updates"] + found["deletes"] < found["source"] else None


def _known_after(entry: dict[str, Any]) -> Lsn | None:
    """Return the LSN at which the window of a MERGE of known rows began; None for any other commit."""
    at_location = _KNOWN_FROM.fullmatch(str(entry.get("userMetadata")))
    if at_location is not None:
        return Lsn(int(at_location[1]))
    in_catalog = commit_marks.read(entry).more.get(KNOWN_AFTER)
    return Lsn(in_catalog) if isinstance(in_catalog, int) else None


def _counted(entry: dict[str, Any], metric_names: dict[str, str]) -> dict[str, int]:
    metrics = entry.get("operationMetrics") or {}
    return {kind: int(metrics.get(metric, 0)) for kind, metric in metric_names.items()}
