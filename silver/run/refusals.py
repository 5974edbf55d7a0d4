"""Tables that silver must not carry as things are: why, as their errors.

Everything is checked again in each cycle, so a refusal ends with its cause. It is also checked before a table
is rebuilt (`smelt rebuild`), which would otherwise write over another table's rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bronze.errors import TableError, resnapshot_remedy
from bronze.store.gaps import is_left_out
from bronze.store.marks import snapshot_of
from silver.errors import name_refused
from silver.schema.catalog import check_table, histories

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from deltalake import DeltaTable

    from bronze.identifiers import TableName
    from bronze.lake.control import Cut
    from bronze.lake.location import Lake
    from bronze.lsn import Lsn
    from bronze.shapes import Relation
    from silver.plan.activity import Activity
    from silver.run.stored import Stored
    from silver.schema.catalog import SilverTable
    from silver.settings import SilverSettings


def there(tables: Collection[SilverTable], bronze: DeltaTable, settings: SilverSettings) -> list[SilverTable]:
    """Those of which silver has, or gets, a table; needed where tables may claim one name."""
    if not settings.history:
        return []
    return [
        table
        for table in tables
        if snapshot_of(bronze, table.table) is not None and not is_left_out(bronze, table.table)
    ]


def same_names(
    lake: Lake, tables: Collection[SilverTable], bronze: DeltaTable, settings: SilverSettings
) -> dict[TableName, TableError]:
    """Errors of the tables that a catalog would keep in one table, histories included; none at a path.

    Args:
        lake: whose.
        tables: of the source.
        bronze: `bronze.changes`.
        settings: silver's.
    """
    if lake.path is not None:
        return {}
    of_source = [table for table in tables if not is_left_out(bronze, table.table)]
    return alike([*of_source, *histories(of_source, settings)])


def alike(tables: Iterable[SilverTable]) -> dict[TableName, TableError]:
    """Errors of tables whose names differ in nothing but case, which a catalog does not tell apart.

    Args:
        tables: those of a lake in a catalog that the source has, and their histories.
    """
    found: dict[str, list[SilverTable]] = {}
    for table in tables:
        found.setdefault(table.name.lower(), []).append(table)
    errors: dict[TableName, TableError] = {}
    for same in found.values():
        for one in same:
            other = next((other for other in same if other.name != one.name), None)
            if other is not None:  # of one and the same name `check_table` tells
                whose = f"the history of {other.table}" if other.history else f"that of {other.table}"
                why = f" beside {whose}: case does not count"
                errors.setdefault(one.table, name_refused(one.table, f"silver.{one.name}", why))
    return errors


def refused(
    table: SilverTable,
    start: Lsn | None,
    *,
    there: Sequence[SilverTable],
    relations: Sequence[Relation],
    last: Cut | None,
    settings: SilverSettings,
) -> TableError | None:
    """Why a table cannot be carried as things are.

    Args:
        table: which.
        start: LSN up to which it is done; None while nothing lets it begin.
        there: `there`.
        relations: all known shapes.
        last: the newest cut.
        settings: silver's.
    """
    if start is None:
        return _former_name(table, relations, last)
    if table.problem is not None:
        return table.problem
    try:
        check_table(table, there, settings)
    except TableError as error:
        return error
    return None


def _former_name(table: SilverTable, relations: Sequence[Relation], last: Cut | None) -> TableError | None:
    """An error where the table is in silver under another name, which it had before."""
    names = {one.table for one in relations if one.relation_id == table.relation.relation_id} - {table.table}
    known = sorted(name for name in names if last is not None and name.silver_name in last.tables)
    if not known:
        return None
    return TableError(
        table.table,
        f"the table was called {known[0]} before; silver.{known[0].silver_name} stays as it was",
        code="table-renamed",
        remedy=resnapshot_remedy(table.table, "resnapshot it under its new name"),
    )


def check_relation(
    table: SilverTable,
    stored: Stored | None,
    relations: Sequence[Relation],
    start: Lsn,
    activity: Activity | None,
) -> None:
    """Whether the table's changes are changes of the rows that silver has, or a snapshot replaces those.

    Raises:
        TableError: they are another relation's: dropped and recreated, or another table's name by now.
    """
    relation_id = table.relation.relation_id
    if stored is None or (activity is not None and activity.snapshot is not None):
        return
    if stored.relation is None:
        # Made before that was kept: another relation's if that one is younger than the rows.
        others = {one.relation_id for one in relations if one.table == table.table} - {relation_id}
        born = min(one.from_lsn for one in relations if one.relation_id == relation_id)
        if not others or start >= born:
            return
    elif stored.relation == str(relation_id):
        return
    raise TableError(
        table.table,
        "another table has this name now, or it was recreated; silver has the rows of the old one",
        code="table-recreated",
        remedy=resnapshot_remedy(table.table, "resnapshot it"),
    )
