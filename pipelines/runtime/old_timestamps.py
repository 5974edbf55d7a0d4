"""Rewrite tables of earlier versions, whose files hold timestamps as INT96; a part of `smelt maintain`.

An INT96 counts the nanoseconds of a day. Spark reads every INT96 exactly. Readers with 64 bits of nanoseconds
since 1970 wrap around outside the years 1677 to 2262, without an error. This version writes 64 bits of
microseconds (`silver.spark.semantics`), but a MERGE leaves older files of the table as they are.

* **Old files.** The table property `silver.schema.ddl.TIMESTAMPS` states that no file is old. A new table has
  the property from CREATE TABLE on; an older table gets the property after maintenance has read all footers.
  Others, and an earlier release that is used again, may add old files afterwards. So each `smelt maintain`
  searches again (`_doubtful`).
* **The rewrite.** OPTIMIZE alone writes. OPTIMIZE removes exactly the files that it has read, and Delta
  refuses the commit if one of these files is gone: a concurrent or late commit cannot be lost. All file
  actions have ``dataChange = false``, so the change feed has no rows of the rewrite, and gold and the cuts
  treat the new version as the same rows. Older versions keep their files as long as a cut names the version.
* **A kill** between two statements leaves the table as before the next statement. The property `TIMESTAMPS`
  is set last, so maintenance that did not finish is repeated.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake.foreign_commits import added_by_others
from deltasmelt.bronze.lake.parquet import file_system
from deltasmelt.silver.schema.clustering import cluster_by, may_cluster
from deltasmelt.silver.schema.ddl import MICROSECONDS, TIMESTAMPS
from deltasmelt.silver.schema.fields import fields_of
from deltasmelt.silver.spark.semantics import writes_microseconds
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.table import Table

_LOGGER: Final = logging.getLogger("deltasmelt.maintenance")
_OWED: Final = "deltasmelt.timestampsOwed"
"""Table property: the columns, as JSON, by which the table was clustered before the rewrite."""
_CHECKED_VERSION: Final = "deltasmelt.timestampsVersion"
"""Table property: the version up to which files are known; no version without the property."""
_FEW: Final = 100
"""Number of files whose footers are read at each maintenance."""
_SOON: Final = 100
"""Number of commits read from the log again at the next maintenance."""
_MOST: Final = 4
"""Delta clusters by at most four columns."""


def renewed(spark: SparkSession, address: str, table: Table, run: Callable[[str], object]) -> bool:
    """Rewrite a table if a file holds timestamps as INT96; return whether the table was rewritten.

    `address` is the table as SQL names it; `run` runs a statement that writes the table
    (`silver.run.writer`).
    """
    table.refresh()
    properties = table.metadata().configuration
    proven, in_catalog = (
        TIMESTAMPS in properties and _OWED not in properties,
        # Python cannot read the files of a catalog's table: without the property the table is rewritten, and
        # with the property it is believed.
        not table.shows_files,
    )
    if proven and not writes_microseconds(spark):  # files of this server contradict the property
        _unset(address, TIMESTAMPS, run)
        return False
    fields = json.loads(table.schema().to_json())["fields"]
    if '"timestamp"' not in json.dumps(fields) or not writes_microseconds(spark) or (proven and in_catalog):
        return False
    checked_version = int(properties.get(_CHECKED_VERSION, -1))
    doubtful = _doubtful(table, checked_version) if proven else None
    work = _OWED in properties or in_catalog or has_old_files(table, doubtful)
    if work:
        _write_again(spark, address, _orderable(table, fields), properties.get(_OWED), run)
        table.refresh()
        if not in_catalog and has_old_files(table):
            _LOGGER.warning(
                "%s still has timestamps as INT96; does another version of deltasmelt write to the table?",
                address,
            )
            return True
    elif doubtful is not None and not _is_worth_stating(table, checked_version, len(doubtful)):
        return False
    proof = {TIMESTAMPS: MICROSECONDS, _CHECKED_VERSION: str(table.version())}
    listed = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in proof.items())
    run(f"ALTER TABLE {address} SET TBLPROPERTIES ({listed})")
    return work


def _doubtful(table: Table, known: int) -> set[str]:
    """Return the files of a table that, after version `known`, may be old in spite of the property."""
    paths = set(pa.table(table.get_add_actions())["path"].to_pylist())
    commits = range(known + 1, table.version() + 1)
    if len(paths) <= _FEW or len(commits) > len(paths):  # the log would cost more than the footers
        return paths
    # The files of commits that no session of this release signed.
    added: set[str] = set()
    for version in commits:
        entry = table.entry(version)
        if entry is None:  # the log was cut since
            return paths
        added |= added_by_others(entry)
    return paths & added


def _is_worth_stating(table: Table, known: int, footers: int) -> bool:
    """Check whether the next search costs much less if it begins at the present version."""
    many = pa.table(table.get_add_actions()).num_rows > _FEW
    return many and (footers > _FEW or table.version() - known > _SOON)


def has_old_files(table: Table, only: set[str] | None = None) -> bool:
    """Check whether a file of the handle's version has an INT96 column, oldest files first.

    `only` has the paths of the files to read; None for all.
    """
    actions = pa.table(table.get_add_actions())
    times, paths = (actions[name].to_pylist() for name in ("modification_time", "path"))
    files = [path for _, path in sorted(zip(times, paths, strict=True), key=str)]
    return any(_is_old(table.table_uri, path) for path in files if only is None or path in only)


def _is_old(uri: str, path: str) -> bool:
    def read() -> bool:
        with file_system(uri).open_input_file(path) as file, pq.ParquetFile(file) as parquet:
            columns: Any = parquet.schema
            return any(columns.column(at).physical_type == "INT96" for at in range(len(columns)))

    return perform(Effect.READ_FILE, f"{uri}/{path}", read)


def _write_again(
    spark: SparkSession, address: str, columns: list[str], owed: str | None, run: Callable[[str], object]
) -> None:
    """Rewrite every file by OPTIMIZE.

    `columns` are fit for ordering rows; `owed` is the value of `_OWED`, left by killed maintenance.
    """
    detail = spark.sql(f"DESCRIBE DETAIL {address}").select("clusteringColumns", "tableFeatures").collect()[0]
    columns_due = [_plain(name) for name in detail[0] or ()] if owed is None else json.loads(owed)
    if not columns_due and "clustering" not in (detail[1] or ()):
        run(f"OPTIMIZE {address} ZORDER BY ({quote(columns[0])})")
        return
    # OPTIMIZE skips files that are clustered by the table's columns already, however old the files are, and
    # rewrites files that are clustered by other columns. So the columns change, then return. `_OWED` holds
    # the original columns in between: after a kill, the next maintenance restores the columns.
    extra = next(name for name in columns if name not in columns_due)
    temporary = [*columns_due, extra] if len(columns_due) < _MOST else columns_due[:-1]
    run(f"ALTER TABLE {address} SET TBLPROPERTIES ({literal(_OWED)} = {literal(json.dumps(columns_due))})")
    for order in (temporary, columns_due):
        run(f"ALTER TABLE {address} {cluster_by(order) if order else 'CLUSTER BY NONE'}")
        if order:
            run(f"OPTIMIZE {address} FULL")
    _unset(address, _OWED, run)


def _orderable(table: Table, fields: list[dict[str, Any]]) -> list[str]:
    """Return the columns with statistics, which Delta requires of columns that order rows."""
    names = [column.name for column in fields_of({"fields": fields}) if may_cluster(column.ddl)]
    if not table.shows_files:
        return names
    actions = pa.table(table.get_add_actions(flatten=True))
    measured = {name for name in actions.column_names if actions[name].null_count < actions.num_rows}
    stored = {
        column["name"]: column["metadata"].get("delta.columnMapping.physicalName", column["name"])
        for column in fields
    }
    return [name for name in names if f"min.{stored[name]}" in measured]


def _plain(name: str) -> str:
    """Return a column's name from DESCRIBE DETAIL, which quotes odd names."""
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _unset(address: str, name: str, run: Callable[[str], object]) -> None:
    run(f"ALTER TABLE {address} UNSET TBLPROPERTIES IF EXISTS ({literal(name)})")
