"""Where the log files lie: what we log, and what Spark and its JVM say.

One folder for each pipeline under the user's state folder, or the folder that ``SMELT_LOGS`` names.
`smelt.log` is shared by all processes of a pipeline (each line names its process); Spark has a file for each
JVM, because log4j does not share one. Old files are removed at the start, so that they never pile up.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Final

_LARGEST: Final = 10_000_000
_SPARK_FILES: Final = 10
_FORMAT: Final = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


def log_folder(pipeline: str) -> Path:
    """Folder of a pipeline's log files; made if it is not there."""
    given = os.environ.get("SMELT_LOGS")
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    folder = Path(given) if given else Path(base) / "deltasmelt" / pipeline
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a job's account often has no home that it may write to
        folder = Path(tempfile.gettempdir()) / f"deltasmelt-{os.geteuid()}" / pipeline
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def spark_log(pipeline: str) -> Path:
    """A new log file for this process's Spark; all but the newest few older ones are removed."""
    folder = log_folder(pipeline)
    dated = []
    for path in folder.glob("spark-*.log"):
        try:
            dated.append((path.stat().st_mtime, path))
        except FileNotFoundError:  # another process tidies at the same moment
            continue
    for _, path in sorted(dated)[: -_SPARK_FILES + 1]:
        path.unlink(missing_ok=True)
    return folder / f"spark-{os.getpid()}.log"


def start_logging(pipeline: str) -> Path:
    """Send Python's logging to the pipeline's `smelt.log`; returns that file."""
    path = log_folder(pipeline) / "smelt.log"
    if path.exists() and path.stat().st_size > _LARGEST:
        path.replace(path.with_suffix(".log.1"))
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("deltasmelt").setLevel(logging.INFO)
    for layer in ("bronze", "silver", "gold", "pipelines"):
        logging.getLogger(layer).setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    return path
