"""Table features that a silver table asks of its readers, each from when it first needs it. Pure text.

Whoever reads a Delta table must know every reader feature that it has. Delta and Databricks know all of ours.
delta-rs and Polars know deletion vectors, but refuse a table that may have widened types, and Polars one with
mapped columns (`docs/readers.md`). So a table is made without the two:

* column mapping comes with the first rename or drop, or with a name that Parquet's files cannot bear;
* type widening comes with the first type that is widened in place;
* local timestamps: Delta adds that feature for a column that a table is made with; for one that is added
  later it must be asked for.

To ask twice for a feature does no harm: a cycle that was killed after it asks again.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#table-features.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from silver.schema.catalog import SilverColumn

MAPPING: Final = "delta.columnMapping.mode"
BY_NAME: Final = "name"
WIDENING: Final = "delta.enableTypeWidening"
NTZ: Final = "TIMESTAMP_NTZ"
NTZ_FEATURE: Final = "delta.feature.timestampNtz"

_ODD: Final = re.compile(r"[ ,;{}()\n\t=]")
"""What Delta refuses in the name of a column that is not mapped."""
_FIELD: Final = re.compile(r"`((?:[^`]|``)*)`")
_MAPPED_ALONE: Final = ("RENAME COLUMN ", "DROP COLUMN ")
_RETYPED: Final = re.compile(r"ALTER COLUMN `(?:[^`]|``)*` TYPE ")


def wants_mapping(columns: Iterable[SilverColumn]) -> bool:
    """Whether one of the columns, or a field inside of one, has a name that only mapped columns have."""
    return any(
        _ODD.search(name) for column in columns for name in (column.name, *_FIELD.findall(column.spark_type))
    )


def wants_local_times(wanted: Iterable[str], actual: Iterable[str]) -> bool:
    """Whether a table gets its first timestamp without a zone, wherever inside of a column.

    Args:
        wanted: the types that its columns are to have.
        actual: those that they have.
    """
    return any(NTZ in ddl for ddl in wanted) and not any(NTZ in ddl for ddl in actual)


def enabled(target: str, name: str, value: str) -> str:
    """The statement that asks for a feature."""
    return f"ALTER TABLE {target} SET TBLPROPERTIES ({literal(name)} = {literal(value)})"


def with_features(target: str, statements: Sequence[str], *, mapped: bool = False) -> list[str]:
    """ALTERs, and before them what enables the features that they need.

    Args:
        target: the table as Spark SQL.
        statements: what is to be done to it.
        mapped: a name among what is added needs mapped columns.
    """
    actions = [statement.removeprefix(f"ALTER TABLE {target} ") for statement in statements]
    needed = []
    if mapped or any(action.startswith(_MAPPED_ALONE) for action in actions):
        needed.append(enabled(target, MAPPING, BY_NAME))
    if any(_RETYPED.match(action) for action in actions):
        needed.append(enabled(target, WIDENING, "true"))
    return [*needed, *statements]
