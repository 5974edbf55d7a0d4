"""Rows of one statement as a file: ``smelt sql … --to``.

CSV and JSON lines are written as the rows arrive. Spark writes Parquet: a name with the ending ``.parquet``
becomes one file, written by one task; any other name becomes a folder with a file from each task.

An export overwrites nothing, and a failed statement leaves nothing. The file receives its name when complete.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.figures import counted
from deltasmelt.bronze.lake.place import Location
from deltasmelt.pipelines.sql_shell.results import STREAMED, running
from deltasmelt.pipelines.terminal.arguments import RowFormat
from deltasmelt.silver.spark.semantics import AS_MICROSECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BY_SUFFIX: Final = {
    ".csv": RowFormat.CSV,
    ".json": RowFormat.JSON,
    ".jsonl": RowFormat.JSON,
    ".ndjson": RowFormat.JSON,
    ".parquet": RowFormat.PARQUET,
}


def format_of(target: str) -> RowFormat | None:
    """Return the format in a file's name; None for a name without a format."""
    return _BY_SUFFIX.get(PurePath(target).suffix.lower())


class Export:
    """One file or folder, for one statement's rows; for Parquet also the URL of a folder in a store.

    Raises:
        ConfigurationError: the target exists, its folder does not exist, or the format cannot go to the
            target.
    """

    def __init__(self, target: str, form: RowFormat) -> None:
        self._target = target
        self._form = form
        self._used = False
        path = Location(target).folder
        if path is None and (form is not RowFormat.PARQUET or target.endswith(".parquet")):
            raise _unfit(
                target, "only folders of Parquet can be written to an object store", "use a local path"
            )
        if form is RowFormat.TABLE:
            if format_of(target) is None:
                raise _unfit(
                    target,
                    "its name has no suffix of a format",
                    "give it the suffix .csv, .jsonl or .parquet, or add --output csv, json or parquet",
                )
            raise _unfit(
                target,
                "a file cannot hold a drawn table",
                "leave out --output table, or use --output csv, json or parquet",
            )
        self._place = None if path is None else path.expanduser().absolute()
        if self._place is not None and self._place.exists():
            raise _unfit(
                target, "already exists", ("choose another --to, or remove the existing file or folder")
            )
        if self._place is not None and not self._place.parent.is_dir():
            raise _unfit(target, "its folder does not exist", f"mkdir -p {self._place.parent}")

    def write(self, spark: SparkSession, frame: DataFrame) -> str:
        """Write all rows; return a description of the result.

        Raises:
            DefiniteError: the statement fails at runtime, or is not the first statement with rows.
        """
        if self._used:
            raise DefiniteError(
                f"{self._target} already has the rows of an earlier statement",
                code="sql-target",
                where="SQL",
                remedy="run one statement that has rows, or write to standard output",
            )
        self._used = True
        if self._place is None:
            with running():
                frame.write.mode("errorifexists").parquet(self._target)
            return f"{self._target}: written"
        folder = Path(tempfile.mkdtemp(prefix=f".{self._place.name}-", dir=self._place.parent))
        try:
            rows = self._write(spark, frame, folder / "rows")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return f"{self._target}: {counted(rows, 'row')}"

    def _write(self, spark: SparkSession, frame: DataFrame, made: Path) -> int:
        place = self._place or made
        if self._form is not RowFormat.PARQUET:
            with made.open("w", encoding="utf-8", newline="") as file:
                rows = 0
                for line in STREAMED[self._form](frame):
                    file.write(line)
                    rows += 1
            _name(made, place)
            return rows - (self._form is RowFormat.CSV)
        _write_parquet(spark, frame, made, one_file=place.suffix == ".parquet")
        parts = sorted(made.glob("part-*.parquet"))
        rows = sum(pq.read_metadata(part).num_rows for part in parts)
        if place.suffix == ".parquet":
            (made,) = parts
        _name(made, place)
        return rows


def _name(made: Path, place: Path) -> None:
    """Give a complete file its name, unless another file took the name meanwhile."""
    try:
        # A rename replaces a file of the name: so an empty file or folder takes the name first.
        place.mkdir() if made.is_dir() else place.touch(exist_ok=False)
    except FileExistsError:
        raise _unfit(
            str(place), ("was created by another program during the export"), "choose another --to"
        ) from None
    made.rename(place)


def _write_parquet(spark: SparkSession, frame: DataFrame, folder: Path, *, one_file: bool) -> None:
    from deltasmelt.silver.spark.access import access_of  # noqa: PLC0415 - Spark is up by now
    from deltasmelt.silver.spark.tuning import settings  # noqa: PLC0415

    if not access_of(frame.sparkSession).tasks_write_here:  # its tasks see another machine's files
        folder.mkdir()
        with running():
            pq.write_table(frame.toArrow(), folder / "part-0.parquet")
        return
    with running(), settings(spark, AS_MICROSECONDS):
        writer = (frame.coalesce(1) if one_file else frame).write
        (writer.option("maxRecordsPerFile", 0) if one_file else writer).parquet(str(folder))


def _unfit(target: str, message: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(message, code="sql-target", where=target, remedy=remedy)
