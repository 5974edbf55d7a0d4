"""Whose rows a silver table holds: the relation's id, in a property of the table. Pure text.

A name may come to mean another relation: the table was dropped and recreated, or two tables swapped their
names. Rows of one and changes of the other must never be mixed, so a cycle compares ids (`silver.cycle`).
Only a snapshot of the new relation replaces the old one's rows. The property is written before them. So if
the process is killed in between, or the load fails, the snapshot is still after the table's mark, and is
loaded next.

History and soft-deleted rows outlive the table that they came from, but attnums do not: another table's
column 3 is another column. For another relation, columns of the same name and type are taken to be the same.
A column of another type makes room for the new one; the others are no longer the source's.

Names and types decide, so the statements may end anywhere and be derived again; the property comes last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bronze.identifiers import folded
from silver.schema.ddl import RELATION_PROPERTY
from silver.schema.features import with_features
from silver.schema.fields import former_name, free_name
from silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from silver.schema.catalog import SilverTable
    from silver.schema.fields import DeltaColumn


def adopted(
    target: str, table: SilverTable, actual: Sequence[DeltaColumn], relation: str | None
) -> tuple[list[str], list[DeltaColumn]]:
    """Statements that make a table's columns those of another relation, and the columns after them.

    Args:
        target: the table as Spark SQL.
        table: the wanted shape.
        actual: the columns that it has.
        relation: what the property says; None of a table that was made before it was kept.
    """
    wanted = str(table.relation.relation_id)
    if relation == wanted:
        return [], list(actual)
    alter, sql, fields = f"ALTER TABLE {target}", [], list(actual)
    if relation is not None and table.versioned:
        columns = {folded(column.name): column for column in table.columns}
        for at, field in enumerate(actual):
            same = columns.get(folded(field.name))
            if field.attnum is None and same is None:
                continue
            name, attnum = field.name, None
            if same is not None and same.spark_type == field.ddl:
                attnum = same.attnum
            elif same is not None:
                taken = [*(one.name for one in fields), *(one.name for one in table.columns)]
                name = free_name(former_name(field.name, field.attnum, field.ddl), taken)
                sql.append(f"{alter} RENAME COLUMN {quote(field.name)} TO {quote(name)}")
            if attnum != field.attnum:
                comment = "" if attnum is None else f"attribute {attnum}"
                sql.append(f"{alter} ALTER COLUMN {quote(name)} COMMENT {literal(comment)}")
            fields[at] = replace(field, name=name, attnum=attnum, missing=None)
    sql.append(f"{alter} SET TBLPROPERTIES ({literal(RELATION_PROPERTY)} = {literal(wanted)})")
    return with_features(target, sql), fields
