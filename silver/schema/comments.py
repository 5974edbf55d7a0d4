"""The statements that give a silver table the comments of its source. Pure text.

They follow from what the table has and what bronze knows, as all its statements do. So it does not matter
when a comment changed, how far silver is behind, or where the process ended: whoever looks next sees what is
still to be done, and nothing where it is done. A column is found by its attnum, under whichever name it has
at that moment; so a comment may come before the rename that the log announces, or after it. Rows and marks
are left alone: a comment is a version of its own, with the rows of the one before.

A table whose source never had a comment is described by what it holds. Where the source's comment is gone,
that description comes back, but only in place of the source's: what somebody wrote there by hand stays.
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
    """What a table says of itself: the source's comment, or else what its rows are."""
    comments = table.relation.comments
    if comments is None or comments.table is None:
        return f"{'Versions of rows' if table.history else 'Rows'} of {table.table}"
    return _of_source(table, comments.table)


def described(target: str, table: SilverTable, actual: Sequence[DeltaColumn], description: str) -> list[str]:
    """At most one statement for the columns and one for the table; none where all is as it should be.

    Args:
        target: the table as Spark SQL.
        table: the wanted shape, of the relation whose rows the table holds; it may be ahead of `actual`.
        actual: the columns that it has.
        description: the table's own comment.
    """
    comments = table.relation.comments
    if comments is None:  # nobody has looked yet
        return []
    wanted = {column.attnum: column for column in table.columns if column.attnum is not None}
    changed = [
        f"{quote(field.name)} COMMENT {literal(comment)}"
        for field in believed(actual, table.columns)
        if field.attnum in wanted and field.missing is None
        if (comment := comment_of(wanted[field.attnum], filled=True)) != field.comment
    ]
    sql = [f"ALTER TABLE {target} ALTER COLUMN\n  {comma(changed, 2)}"] if changed else []
    if comments.table is None and description not in {_of_source(table, one) for one in comments.former}:
        return sql
    if description != (said := description_of(table)):
        sql.append(f"COMMENT ON TABLE {target} IS {literal(said)}")
    return sql


def _of_source(table: SilverTable, comment: str) -> str:
    return f"{comment} (versions of rows of {table.table})" if table.history else comment
