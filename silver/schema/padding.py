"""Remove the padding of char(n) from tables that an earlier version of deltasmelt wrote. Pure text.

`silver.schema.types` reads char(n) without its padding. Earlier versions wrote the padding into silver. The
fold would not match such a row by its key, and would insert the row a second time.

A table property therefore records that a table has no padding. If a table with char(n) lacks the property, an
UPDATE removes the padding before any other statement, and silver sets the property last. If the process dies
in between, the next cycle repeats the UPDATE, which then changes no row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import TableError, resnapshot_remedy
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltasmelt.bronze.shapes import PgType
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.schema.fields import DeltaColumn

PADDING_PROPERTY: Final = "deltasmelt.padding"
"""Table property: `UNPADDED` if no value of char(n) has padding."""
UNPADDED: Final = "none"


def properties(table: SilverTable) -> dict[str, str]:
    """Return the properties of a new table."""
    has_char = any(_has_char(column.type) for column in table.relation.columns)
    return {PADDING_PROPERTY: UNPADDED} if has_char else {}


def is_padded(table: SilverTable, actual: Sequence[DeltaColumn], known: Mapping[str, str]) -> bool:
    """Check whether rows may hold padding; `known` are the properties that the table has."""
    return known.get(PADDING_PROPERTY) != UNPADDED and bool(_char_columns(table, actual))


def unpadded(
    target: str,
    table: SilverTable,
    actual: Sequence[DeltaColumn],
    known: Mapping[str, str],
    *,
    emptied: bool,
) -> list[str]:
    """Return the statements that drop the padding from a table's rows.

    With `emptied` the next statement replaces all rows, so padding inside of values does not matter.

    Raises:
        TableError: padding is inside of a value.
    """
    if not properties(table).items() - known.items():
        return []
    columns = _char_columns(table, actual)
    inside = [name for name, type_ in columns.items() if not _is_char(type_)]
    # Only a new snapshot removes padding inside arrays, composites and ranges.
    if inside and not emptied:
        raise TableError(
            table.table,
            f"values of char(n) inside {', '.join(inside)} have trailing blanks in silver.{table.name}, "
            "because an earlier version of deltasmelt wrote the values",
            code="column-retyped",
            remedy=resnapshot_remedy(table.table),
        )
    plain = [quote(name) for name, type_ in columns.items() if _is_char(type_)]
    sets = ", ".join(f"{name} = rtrim({name})" for name in plain)
    condition = " OR ".join(f"{name} LIKE '% '" for name in plain)
    update = [f"UPDATE {target} SET {sets} WHERE {condition}"] if plain else []
    padding = f"{literal(PADDING_PROPERTY)} = {literal(UNPADDED)}"
    return [*update, f"ALTER TABLE {target} SET TBLPROPERTIES ({padding})"]


def _char_columns(table: SilverTable, actual: Sequence[DeltaColumn]) -> Mapping[str, PgType]:
    """Return the types of the columns with char(n), by the columns' names in the table."""
    types = {column.attnum: column.type for column in table.relation.columns if column.attnum is not None}
    types_by_name = {field.name: types[field.attnum] for field in actual if field.attnum in types}
    return {name: type_ for name, type_ in types_by_name.items() if _has_char(type_)}


def _is_char(type_: PgType) -> bool:
    while type_.kind == "domain" and type_.element is not None:
        type_ = type_.element
    return type_.kind == "base" and type_.name == "bpchar"


def _has_char(type_: PgType) -> bool:
    return any(part.kind == "base" and part.name == "bpchar" for part in type_.parts())
