"""The rows of subjects in silver, and statements after which no file of a table holds deleted rows.

Silver's table holds a subject only with soft deletes, and the history holds its versions. No live row has a
key of a subject (the caller has refused), so all rows with a key are the subject's.

`purge` writes tables of silver and gold. Its statements leave no row in the table's files that is deleted by
a deletion vector, and a checkpoint behind which the whole former log can be cut: the statements themselves
name the key in the log. Every statement may be repeated. After a kill in between the table has the same live
rows, and cuts continue to name the version before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.silver.schema.catalog import DELETED
from deltasmelt.silver.schema.ddl import CHECKPOINTS
from deltasmelt.silver.schema.live_rows import is_live
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.store.erasure import Key
    from deltasmelt.silver.run.writer import Writer
    from deltasmelt.silver.schema.catalog import SilverTable

_ALWAYS: Final = "1"
"""Interval at which each commit makes a checkpoint."""


def is_live_with(table: SilverTable, keys: Iterable[Key]) -> str:
    """Return the condition of a live row with one of the keys. Pure."""
    return f"{_has_key(table, keys)} AND {is_live(table)}"


def is_erased(table: SilverTable, keys: Iterable[Key]) -> str:
    """Return the condition of the subjects' rows in a table with soft deletes, or in a history. Pure."""
    found = _has_key(table, keys)
    return found if table.history else f"{found} AND {DELETED}"


def _has_key(table: SilverTable, keys: Iterable[Key]) -> str:
    values = [
        [
            table.column(name).reading.value(literal(text), 0)
            for name, text in zip(table.key, key, strict=True)
        ]
        for key in sorted(keys)
    ]
    names = [quote(name) for name in table.key]
    if len(names) == 1:
        return f"{names[0]} IN ({', '.join(value for (value,) in values)})"
    return "({})".format(" OR ".join(
        "({})".format(" AND ".join(f"{name} = {value}" for name, value in zip(names, row, strict=True)))
        for row in values
    ))  # fmt: skip


def purge(session: SparkSession, writer: Writer, table: Table, name: str, erased: str | None = None) -> None:
    """Delete rows, rewrite every file with deleted rows, and make a checkpoint at the version afterwards.

    Args:
        table: handle of the table, at any version.
        erased: condition of the rows to delete; None: no row.
    """
    address = writer.lake.sql(writer.layer, name)
    interval = table.metadata().configuration.get(CHECKPOINTS)
    if interval == _ALWAYS:  # a call that was killed before its last statement
        interval = str(writer.lake.place.checkpoint_interval)
    statements = [] if erased is None else [f"DELETE FROM {address} WHERE {erased}"]
    before = f"UNSET TBLPROPERTIES ({literal(CHECKPOINTS)})" if interval is None else _checkpoints(interval)
    writer.run(
        session,
        name,
        *statements,
        f"REORG TABLE {address} APPLY (PURGE)",
        # The commit with this property makes a checkpoint, whatever kind of session runs the statement. The
        # next commit is then the only one after the checkpoint.
        f"ALTER TABLE {address} {_checkpoints(_ALWAYS)}",
        f"ALTER TABLE {address} {before}",
    )


def _checkpoints(interval: str) -> str:
    return f"SET TBLPROPERTIES ({literal(CHECKPOINTS)} = {literal(interval)})"
