"""Build the statements that give a silver table the comments of its source. Pure text.

The statements follow from the table's state and bronze's knowledge alone. So the time of a comment's change,
silver's lag and a kill have no effect: the next cycle finds the remaining statements. Silver finds a column
by its attnum, so a comment may arrive before or after the rename that the log announces. Rows and marks stay
unchanged: a comment is a separate version with the rows of the version before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.silver.schema.fields import believed, comment_of
from deltasmelt.silver.sql import comma, literal, quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.schema.fields import DeltaColumn


def description_of(table: SilverTable) -> str:
    """Return a table's comment: the source's comment, or else a description of the rows."""
    comments = table.relation.comments
    if comments is None or comments.table is None:
        return f"{'Versions of rows' if table.history else 'Rows'} of {table.table}"
    return _of_source(table, comments.table)


def described(target: str, table: SilverTable, actual: Sequence[DeltaColumn], description: str) -> list[str]:
    """Return at most one statement for the columns and one for the table; none if every comment is right.

    `table` has the wanted shape and may be ahead of `actual`, the columns that the table has.
    """
    comments = table.relation.comments
    if comments is None:  # the reader has not read the comments yet
        return []
    source_columns = {column.attnum: column for column in table.columns if column.attnum is not None}
    changed = [
        f"{quote(field.name)} COMMENT {literal(comment)}"
        for field in believed(actual, table.columns)
        if field.attnum in source_columns and field.missing is None
        if (comment := comment_of(source_columns[field.attnum], filled=True)) != field.comment
    ]
    sql = [f"ALTER TABLE {target} ALTER COLUMN\n  {comma(changed, 2)}"] if changed else []
    # A table whose source never had a comment gets a description of its rows. If the source removes its
    # comment, the description returns only in place of the source's comment: a user's own text stays.
    if comments.table is None and description not in {
        _of_source(table, former) for former in comments.former
    }:
        return sql
    if description != (current := description_of(table)):
        sql.append(f"COMMENT ON TABLE {target} IS {literal(current)}")
    return sql


def _of_source(table: SilverTable, comment: str) -> str:
    return f"{comment} (versions of rows of {table.table})" if table.history else comment
