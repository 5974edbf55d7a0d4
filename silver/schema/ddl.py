"""The shape of silver tables: explicit DDL, never automatic schema merging. Pure text.

A column carries its source's attnum in its comment (``attribute 3``), inside the schema itself. So a column
is recognised after a rename, two swapped names are told from two changed types, and the steps from any state
to the wanted one can be derived from the table alone: after a crash between two ALTERs the next cycle takes
up where the last one stopped.

A column that came with a value for the rows before it is added with that value in its comment, too
(``attribute 3; rows before it: 7``); then all rows get it, and then the comment is only the attnum. Killed in
between, the next cycle finds the value there. No row that was written with the column is in the table before
all of that is done.

Delta's MERGE cannot write the change feed of a table with a backtick in a column name (it does not escape
it); such a table has no feed, and gold then rebuilds.

Features: column mapping by name (rename, drop, any character), deletion vectors (small MERGEs on large
files), change data feed (gold), type widening, clustering by key.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bronze.errors import TableError, resnapshot_remedy
from silver.schema.catalog import COMMIT_LSN, DELETED, OWN_COLUMNS, UNREPRESENTABLE, VALID_TO_LSN, living
from silver.schema.unrepresentable import lost_values
from silver.schema.widening import NTZ_FEATURE, wants_feature, widens
from silver.sql import comma, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from silver.schema.catalog import SilverColumn, SilverTable
    from silver.settings import SilverSettings

_FEED: Final = "delta.enableChangeDataFeed"
_STATISTICS: Final = "delta.dataSkippingStatsColumns"
PROPERTIES: Final = {
    "delta.columnMapping.mode": "name",
    "delta.enableDeletionVectors": "true",
    _FEED: "true",
    "delta.enableTypeWidening": "true",
    "delta.checkpointInterval": "50",
    "delta.enableExpiredLogCleanup": "false",
}
"""The log is cut off by what cuts name (`pipelines.runtime.maintenance`); Delta goes by the age of entries
alone."""

RELATION_PROPERTY: Final = "deltasmelt.relation"
"""Table property: id of the relation whose rows the table holds, and whose attnums its columns carry."""

_CLUSTERING_COLUMNS: Final = 4
_INDEXED_COLUMNS: Final = 32
_WITH_STATISTICS: Final = frozenset(
    (
        "SMALLINT",
        "INT",
        "BIGINT",
        "FLOAT",
        "DOUBLE",
        "DECIMAL",
        "STRING",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_NTZ",
    )
)
_ATTRIBUTE: Final = re.compile(r"(?:attribute (\d+)(?:; |$))?(?:rows before it: (.*))?", re.DOTALL)
_TYPES: Final = {
    "long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT", "float": "FLOAT",
    "double": "DOUBLE", "string": "STRING", "boolean": "BOOLEAN", "binary": "BINARY", "date": "DATE",
    "timestamp": "TIMESTAMP", "timestamp_ntz": "TIMESTAMP_NTZ", "variant": "VARIANT",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """A column that a silver table has.

    Attributes:
        attnum: of the source's column that it comes from; None for our own.
        ddl: Spark type, spelt as in `silver.schema.types.Reading`.
        missing: PostgreSQL's text of the value that the rows still have to get; None where they have theirs.
    """

    name: str
    attnum: int | None
    ddl: str
    missing: str | None = None


def fields_of(schema: dict[str, Any]) -> list[Field]:
    """The columns in a Delta schema (its JSON form)."""
    found = []
    for field in schema["fields"]:
        match = _ATTRIBUTE.fullmatch(field.get("metadata", {}).get("comment", ""))
        attnum, missing = (int(match[1]) if match[1] else None, match[2]) if match else (None, None)
        found.append(Field(field["name"], attnum, _ddl(field["type"]), missing))
    return found


def is_of_source(comment: str) -> bool:
    """Whether a column's comment says that it comes from the source."""
    match = _ATTRIBUTE.fullmatch(comment)
    return match is not None and match[1] is not None


def _ddl(plain: str | dict[str, Any]) -> str:
    if isinstance(plain, str):
        return _TYPES.get(plain, plain.upper())
    if plain["type"] == "array":
        return f"ARRAY<{_ddl(plain['elementType'])}>"
    if plain["type"] == "map":
        return f"MAP<{_ddl(plain['keyType'])}, {_ddl(plain['valueType'])}>"
    fields = (f"{quote(field['name'])}: {_ddl(field['type'])}" for field in plain["fields"])
    return f"STRUCT<{', '.join(fields)}>"


def _definition(column: SilverColumn, *, filled: bool = True) -> str:
    comment = "" if column.attnum is None else f" COMMENT {literal(_comment(column, filled=filled))}"
    return f"{quote(column.name)} {column.spark_type}{comment}"


def _comment(column: SilverColumn, *, filled: bool) -> str:
    own = f"attribute {column.attnum}"
    return own if filled or column.missing is None else f"{own}; rows before it: {column.missing}"


def create(target: str, table: SilverTable) -> list[str]:
    """CREATE TABLE for a table that is not there; it says whose rows it holds (`silver.schema.recreated`).

    Delta cuts CLUSTER BY out of the text by places that it counts in characters, Java in halves of those
    beyond U+FFFF. Where such a one stands before its end, the table is clustered by a statement of its own.
    """
    columns = [_definition(column) for column in table.columns]
    columns += [f"{quote(name)} {ddl}" for name, ddl in table.own_columns.items()]
    clustering = _clustering(table)
    properties = {**PROPERTIES, RELATION_PROPERTY: str(table.relation.relation_id)}
    if not _feedable(table):
        properties[_FEED] = "false"
    if _is_wide(table, clustering):
        properties[_STATISTICS] = _indexed(table, clustering)
    cluster = f"\nCLUSTER BY ({_names(clustering)})" if clustering else ""
    options = comma((f"{literal(name)} = {literal(value)}" for name, value in properties.items()), 2)
    head = f"""\
CREATE TABLE IF NOT EXISTS {target} (
  {comma(columns, 2)}
) USING DELTA
COMMENT {literal(f"{'Versions of rows' if table.history else 'Rows'} of {table.table}")}"""
    later = []
    if max(f"{head}{cluster}") > "\uffff" and clustering:
        cluster, later = "", [f"ALTER TABLE {target} CLUSTER BY ({_names(clustering)})"]
    return [f"{head}{cluster}\nTBLPROPERTIES (\n  {options}\n)", *later]


def _feedable(table: SilverTable) -> bool:
    return not any("`" in column.name for column in table.columns)


def _clustering(table: SilverTable) -> list[str]:
    """Key columns to cluster by: the first four that have statistics."""
    types = {name: table.column(name).spark_type.partition("(")[0] for name in table.key}
    return [name for name, type_ in types.items() if type_ in _WITH_STATISTICS][:_CLUSTERING_COLUMNS]


def _is_wide(table: SilverTable, clustering: Sequence[str]) -> bool:
    """Whether a column to cluster by lies behind those that Delta keeps statistics of by itself."""
    return any(_leaves_before(table, name) >= _INDEXED_COLUMNS for name in clustering)


def _leaves_before(table: SilverTable, name: str) -> int:
    """How many columns, counted inside structs, stand before this one."""
    before = table.columns[: table.position(name)]
    return sum(max(1, column.spark_type.count(": ")) for column in before)


def steps(
    target: str, table: SilverTable, actual: Sequence[Field], settings: SilverSettings, *, emptied: bool
) -> list[str]:
    """ALTERs that bring a table to the wanted shape.

    Each one leaves a state from which the rest follows again.

    Args:
        target: the table as Spark SQL.
        table: the wanted shape.
        actual: the columns that it has.
        settings: what becomes of dropped columns.
        emptied: the next statement replaces all rows, so that a column of another type may simply be made
            anew.

    Raises:
        TableError: a type changed in a way that stored values do not survive; a name is taken.
    """
    _check_case(table)
    wanted = {column.attnum: column for column in table.columns if column.attnum is not None}
    known = {field.attnum: field for field in actual if field.attnum is not None}
    names = {attnum: field.name for attnum, field in known.items()}
    alter = f"ALTER TABLE {target}"
    sql: list[str] = []
    if wants_feature([column.spark_type for column in wanted.values()], [field.ddl for field in actual]):
        sql.append(f"{alter} SET TBLPROPERTIES ({literal(NTZ_FEATURE)} = 'supported')")
    sql += _soft(target, table, actual)
    if not _feedable(table) and not any("`" in name for name in names.values()):
        sql.append(f"{alter} SET TBLPROPERTIES ({literal(_FEED)} = 'false')")
    others = [field.name for field in actual if field.attnum is None]
    sql += [f"{alter} {action}" for action in _made_room(table, others, emptied=emptied)]
    types = {attnum: field.ddl for attnum, field in known.items()}
    sql += [
        f"{alter} {action}"
        for action in _dropped(table, names, wanted, types=types, others=others, settings=settings)
    ]
    sql += [f"{alter} {action}" for action in _renamed(names, wanted, others)]
    for attnum, column in wanted.items():
        field = known.get(attnum)
        if field is None or field.ddl == column.spark_type:
            continue
        actions = _retyped(table, field, column, names, types=types, others=others, emptied=emptied)
        sql += [f"{alter} {action}" for action in actions]
    unfilled = {
        attnum: field.missing
        for attnum, field in known.items()
        if field.missing is not None and attnum in wanted and attnum in names
    }
    present = {name.lower() for name in names.values()}
    if not emptied:
        unfilled |= {
            attnum: column.missing
            for attnum, column in wanted.items()
            if attnum not in names and column.name.lower() not in present and column.missing is not None
        }
    sql += [f"{alter} {action}" for action in _added(names, table, filled=emptied)]
    for attnum, text in unfilled.items():
        column = wanted[attnum]
        if not emptied:
            sql.append(_fill(target, table, column, text))
        sql.append(
            f"{alter} ALTER COLUMN {quote(column.name)} COMMENT {literal(_comment(column, filled=True))}"
        )
    return sql


def _check_case(table: SilverTable) -> None:
    """Whether all columns can stand in one table."""
    seen: dict[str, str] = {}
    for column in table.columns:
        other = seen.setdefault(column.name.lower(), column.name)
        if other != column.name:
            raise TableError(
                table.table,
                f"columns {other} and {column.name} differ only in case, which Spark does not tell apart",
                code="table-failed",
                remedy=resnapshot_remedy(table.table, "rename one of them, then take the table again"),
            )


def _made_room(table: SilverTable, others: list[str], *, emptied: bool) -> list[str]:
    """Columns that are no source's make room for one of their name; `others`, their names, follow.

    Such are columns of a former table of this name, former columns of another type, and what somebody added.

    Raises:
        TableError: the table stays as it is, so that nobody knows whose values the column has.
    """
    wanted = {column.name.lower() for column in table.columns if column.attnum is not None}
    actions = []
    for at, name in enumerate(others):
        if name.lower() not in wanted or name in table.own_columns:
            continue
        if not (emptied or table.versioned):
            raise TableError(
                table.table,
                f"silver.{table.name} has a column {name} that does not come from the source, which has one "
                "of that name now",
                code="table-failed",
                remedy=resnapshot_remedy(
                    table.table, f"rename or drop that column of silver.{table.name}; or take the table again"
                ),
            )
        others[at] = free_name(f"{name}__former", [*others, *wanted])
        actions.append(f"RENAME COLUMN {quote(name)} TO {quote(others[at])}")
    return actions


def _retyped(
    table: SilverTable,
    field: Field,
    column: SilverColumn,
    names: dict[int, str],
    *,
    types: Mapping[int, str],
    others: list[str],
    emptied: bool,
) -> list[str]:
    """A column of another type: widened, or made anew where nothing is lost; `names` and `others` follow."""
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
        # Rows that the source no longer has keep their value, in a column that is no source's any more.
        taken = [*names.values(), *others, *(one.name for one in table.columns)]
        others.append(free_name(former_name(column.name, attnum, field.ddl), taken))
        former = quote(others[-1])
        return [f"RENAME COLUMN {name} TO {former}", f"ALTER COLUMN {former} COMMENT ''"]
    return [*_clustered(table, names, types), f"DROP COLUMN {name}"]


def switches(table: SilverTable, actual: Sequence[Field]) -> bool:
    """Whether soft deletes have been switched on or off since the table was written."""
    return bool(_soft("", table, actual))


def _soft(target: str, table: SilverTable, actual: Sequence[Field]) -> list[str]:
    """The column of soft deletes comes or goes, as the setting says; without it deleted rows cannot stay."""
    field = next((one for one in actual if one.attnum is None and one.name == DELETED), None)
    alter = f"ALTER TABLE {target}"
    if not table.soft:
        gone = [f"DELETE FROM {target} WHERE {DELETED}", f"{alter} DROP COLUMN {DELETED}"]
        return [] if field is None else gone
    if field is not None and field.missing is None:
        return []
    added = f"{alter} ADD COLUMNS ({DELETED} BOOLEAN COMMENT 'rows before it: false')"
    return [
        *([added] if field is None else []),
        f"UPDATE {target} SET {DELETED} = false WHERE {DELETED} IS NULL",
        f"{alter} ALTER COLUMN {DELETED} COMMENT ''",
    ]


def former_name(name: str, attnum: int | None, ddl: str) -> str:
    """The name of a column that had to make room for one of another type."""
    kind = re.sub(r"\W+", "_", ddl.lower()).strip("_")
    return f"{name}__{attnum}_{kind}"


def _fill(target: str, table: SilverTable, column: SilverColumn, text: str) -> str:
    """All rows of the source get the value that rows from before the column have; twice is as once."""
    value = column.reading.value(literal(text), 0)
    name, own = literal(column.name), quote(UNREPRESENTABLE)
    sets = [f"{quote(column.name)} = {value}"]
    if not column.reading.exact:
        others = f"map_filter({own}, (name, text) -> name <> {name})"
        lost = lost_values([(column.name, literal(text), value)])
        both = f"map_concat(coalesce({others}, CAST(map() AS {OWN_COLUMNS[UNREPRESENTABLE]})), {lost})"
        sets.append(f"{own} = coalesce({both}, {own})")
    where = f" WHERE {living(table)}" if table.versioned else ""
    return f"UPDATE {target} SET {', '.join(sets)}{where}"


def free_name(name: str, taken: Iterable[str]) -> str:
    """A name that no column has: this one, or with a number behind it."""
    used = {one.lower() for one in taken}
    numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(one for one in numbered if one.lower() not in used)


def _clustered(table: SilverTable, names: Mapping[int, str], types: Mapping[int, str]) -> list[str]:
    """Cluster anew, by what the table has of its key: Delta drops no column that it is clustered by.

    By which columns it is, its key of now does not say; a drop is rare, and this is a commit without data.

    Args:
        table: its wanted shape.
        names: of the columns that stay, as they are called at this moment.
        types: of all its columns, as they are at this moment.
    """
    columns = [
        names[column.attnum]
        for column in map(table.column, _clustering(table))
        if column.attnum is not None
        and column.attnum in names
        and types[column.attnum].partition("(")[0] in _WITH_STATISTICS
    ]
    if not columns:
        return ["CLUSTER BY NONE"]
    return _cluster_by(table, columns, wide=len(types) > _INDEXED_COLUMNS)


def clustered_again(target: str, table: SilverTable, *, statistics: bool = False) -> list[str]:
    """Cluster a table whose rows were all replaced: Delta's INSERT OVERWRITE forgets by what it was.

    A commit of its own, without data. Killed before it, the table is clustered by nothing until its next copy
    or TRUNCATE; that costs time when its files are joined, and nothing else.

    Args:
        target: the table as Spark SQL.
        table: its shape.
        statistics: say also of which columns there are statistics, which an INSERT OVERWRITE leaves as it is.
    """
    columns = _clustering(table)
    if not columns:
        return []
    wide = statistics and _is_wide(table, columns)
    return [f"ALTER TABLE {target} {action}" for action in _cluster_by(table, columns, wide=wide)]


def is_optional(target: str, statement: str) -> bool:
    """Whether a statement of `steps` says by what the table is clustered, and no more."""
    alter = f"ALTER TABLE {target}"
    return statement.startswith(
        (f"{alter} CLUSTER BY ", f"{alter} SET TBLPROPERTIES ({literal(_STATISTICS)} = ")
    )


def _cluster_by(table: SilverTable, columns: Sequence[str], *, wide: bool) -> list[str]:
    by = f"CLUSTER BY ({_names(columns)})"
    if not wide:
        return [by]
    return [f"SET TBLPROPERTIES ({literal(_STATISTICS)} = {literal(_indexed(table, columns))})", by]


def _names(columns: Iterable[str]) -> str:
    return ", ".join(map(quote, columns))


def _indexed(table: SilverTable, clustering: Sequence[str]) -> str:
    """Columns with statistics, where Delta would keep them of the first ones alone; clustering needs them."""
    own = [COMMIT_LSN, *([VALID_TO_LSN] if table.history else [])]
    return ",".join(quote(name) for name in [*clustering, *own])


def _dropped(
    table: SilverTable,
    names: dict[int, str],
    wanted: Mapping[int, SilverColumn],
    *,
    types: Mapping[int, str],
    others: Sequence[str],
    settings: SilverSettings,
) -> list[str]:
    """What becomes of columns that the source no longer has; `names` follows."""
    actions: list[str] = []
    gone = [attnum for attnum in names if attnum not in wanted]
    if settings.on_drop_column == "drop":
        drops = [f"DROP COLUMN {quote(names.pop(attnum))}" for attnum in gone]
        return [*_clustered(table, names, types), *drops] if drops else []
    for attnum in gone:
        name = names[attnum]
        if any(column.name.lower() == name.lower() for column in wanted.values()):
            # its name is needed for another column
            taken = [*names.values(), *others, *(column.name for column in wanted.values())]
            names[attnum] = free_name(f"{name}__{attnum}", taken)
            actions.append(f"RENAME COLUMN {quote(name)} TO {quote(names[attnum])}")
    return actions


def _added(names: Mapping[int, str], table: SilverTable, *, filled: bool) -> list[str]:
    """Columns that are not there yet, each behind the one before it at the source."""
    actions: list[str] = []
    previous: str | None = None
    new_key = False
    present = {name.lower() for name in names.values()}
    for column in table.columns:
        if column.attnum is not None and column.attnum not in names and column.name.lower() not in present:
            place = "FIRST" if previous is None else f"AFTER {quote(previous)}"
            actions.append(f"ADD COLUMNS ({_definition(column, filled=filled)} {place})")
            new_key = new_key or column.name in table.key
        previous = column.name
    if new_key and (clustering := _clustering(table)):
        actions += _cluster_by(table, clustering, wide=_is_wide(table, clustering))
    return actions


def _renamed(names: dict[int, str], wanted: Mapping[int, SilverColumn], others: Sequence[str]) -> list[str]:
    """Renames in an order in which no name is taken twice; a cycle goes through a name that is free.

    So does a name of which only the case changes: to Delta it is taken, by the column itself.
    """
    actions: list[str] = []
    open_ = {attnum for attnum, name in names.items() if attnum in wanted and wanted[attnum].name != name}

    def rename(attnum: int, to: str) -> None:
        actions.append(f"RENAME COLUMN {quote(names[attnum])} TO {quote(to)}")
        names[attnum] = to

    def free(attnum: int) -> bool:
        name = wanted[attnum].name.lower()
        return not any(taken.lower() == name for taken in names.values())

    while open_:
        ready = next((attnum for attnum in sorted(open_) if free(attnum)), None)
        if ready is None:
            stuck = min(open_)
            taken = [*names.values(), *others, *(column.name for column in wanted.values())]
            rename(stuck, free_name(f"{names[stuck]}__{stuck}", taken))
        else:
            rename(ready, wanted[ready].name)
            open_.discard(ready)
    return actions


def kept(table: SilverTable, actual: Sequence[Field]) -> list[tuple[str, str]]:
    """(name, type) of columns that the source no longer has, after `steps` ran."""
    wanted = {column.attnum for column in table.columns}
    return [
        (field.name, field.ddl) for field in actual if field.attnum is not None and field.attnum not in wanted
    ]
