"""The SQL that document files may hold: one scalar, deterministic expression over the columns of one row.

A document must be a function of silver's rows, or rebuilding it twice would give two results. So an
expression may use operators, literals, the row's columns and the functions of `gold.expressions.functions`.
No subquery, aggregate, window, clock, random number or session state can be written.

What it reads must be known exactly, because a change of any other column changes no document. So what is not
sure is refused (`gold.expressions.grammar`). Whether types fit, Spark says when the document is compiled
(`gold.compile.column_types`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltasmelt.gold.expressions.grammar import ExpressionParser
from deltasmelt.gold.expressions.scanner import ColumnReference, parts_sql

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.gold.expressions.clock_texts import Meeting
    from deltasmelt.gold.expressions.compared import Known
    from deltasmelt.gold.expressions.scanner import Parts


@dataclass(frozen=True, slots=True)
class Expression:
    """A scalar expression with its columns found.

    Attributes:
        parts: SQL text and column references, in order.
        meetings: what is to be checked once Spark has said the types (`gold.expressions.coercions`).
        read: as `parts`, without what the parser added to them; empty where it added nothing.
    """

    parts: Parts
    meetings: tuple[Meeting, ...] = field(default=(), compare=False, repr=False)
    read: Parts = field(default=(), compare=False, repr=False)

    @property
    def columns(self) -> frozenset[str]:
        """Columns that it reads."""
        return frozenset(part.name for part in self.parts if isinstance(part, ColumnReference))

    def __str__(self) -> str:
        """The expression as the document file has it, but for white space and the case of column names."""
        return "".join(part if isinstance(part, str) else part.name for part in self.read or self.parts)

    def sql(self, alias: str) -> str:
        """The expression with every column taken from `alias`."""
        return parts_sql(self.parts, alias)


def column(name: str) -> Expression:
    """A column alone."""
    return Expression((ColumnReference(name),))


def parse_expression(text: str, columns: Mapping[str, str | Known], table: str) -> Expression:
    """Read an expression over a row of `table`. Column names are found whatever their case, as SQL does.

    Args:
        text: the expression.
        columns: the table's columns with their Spark types, or with more that is known of them.
        table: its name, for messages.

    Raises:
        ValueError: what it may not hold, or a word that is no column of the table.
    """
    parser = ExpressionParser(text, columns, table)
    try:
        parser.whole()
    except RecursionError:
        raise ValueError("it is nested too deeply to be read") from None
    return Expression(parser.parts, tuple(parser.meetings), parser.read)
