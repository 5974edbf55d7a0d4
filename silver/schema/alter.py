"""Build the ALTERs that bring a silver table from any state to the wanted shape. Pure text.

The steps follow from the table's own columns alone (`silver.schema.fields`). So after a crash between two
ALTERs the next cycle continues after the last ALTER that succeeded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import TableError, resnapshot_remedy
from deltasmelt.bronze.identifiers import folded
from deltasmelt.silver.schema.catalog import DELETED, OWN_COLUMNS, UNREPRESENTABLE
from deltasmelt.silver.schema.clustering import (
    cluster_actions,
    clustering_columns,
    is_wide,
    recluster_for_drop,
)
from deltasmelt.silver.schema.ddl import (
    FEED,
    NTZ_FEATURE,
    enabled,
    feedable,
    wants_local_times,
    wants_mapping,
    with_features,
)
from deltasmelt.silver.schema.fields import (
    DeltaColumn,
    believed,
    comment_of,
    definition,
    former_name,
    free_name,
)
from deltasmelt.silver.schema.live_rows import is_live
from deltasmelt.silver.schema.unrepresentable import lost_values
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltasmelt.silver.schema.catalog import SilverColumn, SilverTable
    from deltasmelt.silver.settings import SilverSettings

_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_WIDER: Final = {
    "SMALLINT": ("INT", "BIGINT", "DOUBLE"),
    "INT": ("BIGINT", "DOUBLE"),
    "FLOAT": ("DOUBLE",),
    "DATE": ("TIMESTAMP_NTZ",),
}
_DIGITS: Final = {"SMALLINT": 10, "INT": 10, "BIGINT": 20}
"""Digits before the point that a DECIMAL needs so that Delta can widen such a column to the DECIMAL."""


def widens(narrow: str, wide: str) -> bool:
    """Check whether Delta changes the type in place and stored values then equal PostgreSQL's values."""
    old_decimal, new_decimal = _DECIMAL.fullmatch(narrow), _DECIMAL.fullmatch(wide)
    if old_decimal is not None and new_decimal is not None:
        more_scale = int(new_decimal[2]) - int(old_decimal[2])
        return more_scale >= 0 and int(new_decimal[1]) - int(old_decimal[1]) >= more_scale
    if new_decimal is not None and narrow in _DIGITS:
        return int(new_decimal[1]) - int(new_decimal[2]) >= _DIGITS[narrow]
    return wide in _WIDER.get(narrow, ())


def steps(
    target: str,
    table: SilverTable,
    actual: Sequence[DeltaColumn],
    settings: SilverSettings,
    *,
    emptied: bool,
) -> list[str]:
    """Return the ALTERs that bring a table to the wanted shape.

    After each ALTER, the remaining steps follow again from the table's state. With `emptied` the next
    statement replaces all rows, so silver may drop and add a column of another type.

    Raises:
        TableError: stored values do not survive a change of type, or a name is taken.
    """
    _check_case(table)
    target_columns = {column.attnum: column for column in table.columns if column.attnum is not None}
    actual = _claimed(table, actual)
    fields = {field.attnum: field for field in actual if field.attnum is not None}
    names = {attnum: field.name for attnum, field in fields.items()}
    alter = f"ALTER TABLE {target}"
    sql: list[str] = []
    if wants_local_times(
        [column.spark_type for column in target_columns.values()], [field.ddl for field in actual]
    ):
        sql.append(enabled(target, NTZ_FEATURE, "supported"))
    sql += _soft(target, table, actual)
    if not feedable(table) and not any("`" in name for name in names.values()):
        sql.append(f"{alter} SET TBLPROPERTIES ({literal(FEED)} = 'false')")
    own_names = [field.name for field in actual if field.attnum is None]
    sql += [f"{alter} {action}" for action in _made_room(table, own_names, emptied=emptied)]
    types = {attnum: field.ddl for attnum, field in fields.items()}
    sql += [
        f"{alter} {action}"
        for action in _dropped(
            table, names, target_columns, types=types, other_names=own_names, settings=settings
        )
    ]
    sql += [f"{alter} {action}" for action in _renamed(names, target_columns, own_names)]
    for attnum, column in target_columns.items():
        field = fields.get(attnum)
        if field is None or field.ddl == column.spark_type:
            continue
        actions = _retyped(table, field, column, names, types=types, others=own_names, emptied=emptied)
        sql += [f"{alter} {action}" for action in actions]
    # A new column may have a value for older rows. Silver adds such a column with the value in the comment,
    # then writes the value into all rows, then reduces the comment to the attnum. After a kill in between,
    # the next cycle reads the value from the comment. No row with the new column enters the table before the
    # last step.
    unfilled = {
        attnum: field.missing
        for attnum, field in fields.items()
        if field.missing is not None and attnum in target_columns and attnum in names
    }
    present = {folded(name) for name in names.values()}
    if not emptied:
        unfilled |= {
            attnum: column.missing
            for attnum, column in target_columns.items()
            if attnum not in names and folded(column.name) not in present and column.missing is not None
        }
    sql += [f"{alter} {action}" for action in _added(names, table, filled=emptied)]
    for attnum, text in unfilled.items():
        column = target_columns[attnum]
        if not emptied:
            sql.append(_fill(target, table, column, text))
        sql.append(
            f"{alter} ALTER COLUMN {quote(column.name)} COMMENT {literal(comment_of(column, filled=True))}"
        )
    mapped = wants_mapping(column for attnum, column in target_columns.items() if attnum not in fields)
    return with_features(target, sql, mapped=mapped)


def _check_case(table: SilverTable) -> None:
    """Raise a TableError if a single table cannot have all columns."""
    spellings: dict[str, str] = {}
    for column in table.columns:
        first = spellings.setdefault(folded(column.name), column.name)
        if first != column.name:
            raise TableError(
                table.table,
                f"columns {first} and {column.name} differ only in case, which Spark does not distinguish",
                code="table-failed",
                remedy=resnapshot_remedy(
                    table.table, ("rename one of these columns, then resnapshot the table")
                ),
            )


def _claimed(table: SilverTable, actual: Sequence[DeltaColumn]) -> list[DeltaColumn]:
    """Return the columns, with the user's own columns unlinked from the source, whatever their comment.

    Raises:
        TableError: several columns name an attnum, and none has the source's name.
    """
    fields = believed(actual, table.columns)
    attnums = {field.attnum for field in fields}
    for column in table.columns:
        several = [field.name for field in actual if field.attnum == column.attnum is not None]
        if several and column.attnum not in attnums:
            raise TableError(
                table.table,
                f"according to their comments, columns {' and '.join(several)} of silver.{table.name} both "
                f"belong to column {column.name} of the source",
                code="table-failed",
                remedy=resnapshot_remedy(
                    table.table,
                    f"change the comment of the column that you added to silver.{table.name}, so that it "
                    f"does not end in (attribute {column.attnum}); or resnapshot the table",
                ),
            )
    return fields


def _made_room(table: SilverTable, others: list[str], *, emptied: bool) -> list[str]:
    """Rename columns that are not from the source and have the name of a source column; update `others`.

    Raises:
        TableError: the table keeps its rows, so nobody knows whose values the column has.
    """
    names = {folded(column.name) for column in table.columns if column.attnum is not None}
    actions = []
    # Such columns come from a former table of this name, from a column of another type, or from a user.
    for at, name in enumerate(others):
        if folded(name) not in names or name in table.own_columns:
            continue
        if not (emptied or table.versioned):
            raise TableError(
                table.table,
                f"silver.{table.name} has its own column {name}, and the source now has a column of the "
                "same name",
                code="table-failed",
                remedy=resnapshot_remedy(
                    table.table, f"rename or drop this column of silver.{table.name}; or resnapshot the table"
                ),
            )
        others[at] = free_name(f"{name}__former", [*others, *names])
        actions.append(f"RENAME COLUMN {quote(name)} TO {quote(others[at])}")
    return actions


def _retyped(
    table: SilverTable,
    field: DeltaColumn,
    column: SilverColumn,
    names: dict[int, str],
    *,
    types: Mapping[int, str],
    others: list[str],
    emptied: bool,
) -> list[str]:
    """Widen a column of another type, or recreate it if nothing is lost; update `names` and `others`."""
    attnum, name = column.attnum, quote(column.name)
    if widens(field.ddl, column.spark_type):
        return [f"ALTER COLUMN {name} TYPE {column.spark_type}"]
    if not emptied or attnum is None:
        raise TableError(
            table.table,
            f"column {column.name} changed its type from {field.ddl} to {column.spark_type}",
            code="column-retyped",
            remedy=resnapshot_remedy(table.table),
        )
    del names[attnum]
    if table.versioned:
        # Rows that the source no longer has keep their value in a column unlinked from the source.
        used = [*names.values(), *others, *(entry.name for entry in table.columns)]
        others.append(free_name(former_name(column.name, attnum, field.ddl), used))
        former = quote(others[-1])
        return [f"RENAME COLUMN {name} TO {former}", f"ALTER COLUMN {former} COMMENT ''"]
    return [*recluster_for_drop(table, names, types), f"DROP COLUMN {name}"]


def is_due(table: SilverTable, actual: Sequence[DeltaColumn], settings: SilverSettings) -> bool:
    """Check whether a table needs an ALTER although no row changes; raise the errors of `steps`."""
    current = {
        (field.attnum, field.name, field.ddl)
        for field in actual
        if field.attnum is not None and field.missing is None
    }
    target_columns = {(column.attnum, column.name, column.spark_type) for column in table.columns}
    is_current = current == target_columns or (
        current >= target_columns and settings.on_drop_column == "keep"
    )
    if is_current and not _soft("", table, actual):
        return False  # nearly every cycle ends here
    return bool(steps("", table, actual, settings, emptied=False))


def _soft(target: str, table: SilverTable, actual: Sequence[DeltaColumn]) -> list[str]:
    """Add or drop the column of soft deletes by the setting."""
    field = next((column for column in actual if column.attnum is None and column.name == DELETED), None)
    alter = f"ALTER TABLE {target}"
    if not table.soft:
        # Without the column, deleted rows cannot stay.
        removal = [f"DELETE FROM {target} WHERE {DELETED}", f"{alter} DROP COLUMN {DELETED}"]
        return [] if field is None else removal
    if field is not None and field.missing is None:
        return []
    added = f"{alter} ADD COLUMNS ({DELETED} BOOLEAN COMMENT 'rows before it: false')"
    return [
        *([added] if field is None else []),
        f"UPDATE {target} SET {DELETED} = false WHERE {DELETED} IS NULL",
        f"{alter} ALTER COLUMN {DELETED} COMMENT ''",
    ]


def _fill(target: str, table: SilverTable, column: SilverColumn, text: str) -> str:
    """Return an UPDATE that gives all source rows the column's value for older rows; safe to repeat."""
    value = column.reading.value(literal(text), 0)
    name, texts = literal(column.name), quote(UNREPRESENTABLE)
    sets = [f"{quote(column.name)} = {value}"]
    if not column.reading.exact:
        remaining = f"map_filter({texts}, (name, text) -> name <> {name})"
        lost = lost_values([(column.name, literal(text), value)])
        merged = f"map_concat(coalesce({remaining}, CAST(map() AS {OWN_COLUMNS[UNREPRESENTABLE]})), {lost})"
        sets.append(f"{texts} = coalesce({merged}, {texts})")
    clause = f" WHERE {is_live(table)}" if table.versioned else ""
    return f"UPDATE {target} SET {', '.join(sets)}{clause}"


def _dropped(
    table: SilverTable,
    names: dict[int, str],
    columns: Mapping[int, SilverColumn],
    *,
    types: Mapping[int, str],
    other_names: Sequence[str],
    settings: SilverSettings,
) -> list[str]:
    """Return the actions for columns that the source no longer has; update `names`."""
    actions: list[str] = []
    dropped = [attnum for attnum in names if attnum not in columns]
    if settings.on_drop_column == "drop":
        drops = [f"DROP COLUMN {quote(names.pop(attnum))}" for attnum in dropped]
        return [*recluster_for_drop(table, names, types), *drops] if drops else []
    for attnum in dropped:
        name = names[attnum]
        if any(folded(column.name) == folded(name) for column in columns.values()):
            # another column needs the name
            used = [*names.values(), *other_names, *(column.name for column in columns.values())]
            names[attnum] = free_name(f"{name}__{attnum}", used)
            actions.append(f"RENAME COLUMN {quote(name)} TO {quote(names[attnum])}")
    return actions


def _added(names: Mapping[int, str], table: SilverTable, *, filled: bool) -> list[str]:
    """Return the actions that add missing columns, each after its predecessor at the source."""
    actions: list[str] = []
    previous: str | None = None
    reclusters = False
    clustering = clustering_columns(table)
    present = {folded(name) for name in names.values()}
    for column in table.columns:
        if column.attnum is not None and column.attnum not in names and folded(column.name) not in present:
            place = "FIRST" if previous is None else f"AFTER {quote(previous)}"
            actions.append(f"ADD COLUMNS ({definition(column, filled=filled)} {place})")
            reclusters = reclusters or column.name in clustering
        previous = column.name
    if reclusters:
        actions += cluster_actions(table, clustering, wide=is_wide(table, clustering))
    return actions


def _renamed(
    names: dict[int, str], columns: Mapping[int, SilverColumn], other_names: Sequence[str]
) -> list[str]:
    """Return renames in an order that takes no name twice; a cycle of names uses a free name in between."""
    actions: list[str] = []
    open_ = {attnum for attnum, name in names.items() if attnum in columns and columns[attnum].name != name}

    def rename(attnum: int, to: str) -> None:
        actions.append(f"RENAME COLUMN {quote(names[attnum])} TO {quote(to)}")
        names[attnum] = to

    def free(attnum: int) -> bool:
        name = folded(columns[attnum].name)
        # A change of case alone is also not free: for Delta the column itself takes the new name.
        return not any(folded(name_in_use) == name for name_in_use in names.values())

    while open_:
        ready = next((attnum for attnum in sorted(open_) if free(attnum)), None)
        if ready is None:
            stuck = min(open_)
            used = [*names.values(), *other_names, *(column.name for column in columns.values())]
            rename(stuck, free_name(f"{names[stuck]}__{stuck}", used))
        else:
            rename(ready, columns[ready].name)
            open_.discard(ready)
    return actions


def former_columns(table: SilverTable, actual: Sequence[DeltaColumn]) -> list[tuple[str, str]]:
    """Return (name, type) of columns that the source no longer has, after `steps` ran."""
    attnums = {column.attnum for column in table.columns}
    actual = believed(actual, table.columns)
    return [
        (field.name, field.ddl)
        for field in actual
        if field.attnum is not None and field.attnum not in attnums
    ]
