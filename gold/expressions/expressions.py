"""Parse the SQL of document files: one scalar, deterministic expression over the columns of one row.

A document must be a function of silver's rows; otherwise two rebuilds would give two results. So an
expression may use operators, literals, the row's columns and the functions of `gold.expressions.functions`.
An expression cannot contain a subquery, aggregate, window, clock, random number or session state.

Gold must know exactly which columns an expression reads, because a change of any other column changes no
document. So the parser refuses every doubtful word (`gold.expressions.grammar`). Spark checks the types when
gold compiles the document (`gold.compile.column_types`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltasmelt.gold.expressions.grammar import ExpressionParser
from deltasmelt.gold.expressions.scanner import ColumnReference, parts_sql

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.gold.expressions.clock_texts import Coercion
    from deltasmelt.gold.expressions.compared import Known
    from deltasmelt.gold.expressions.scanner import Parts


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed scalar expression with its columns.

    Attributes:
        parts: SQL text and column references, in order.
        meetings: coercions to check once Spark has found the types (`gold.expressions.coercions`).
        read: as `parts`, without the parser's additions; empty if the parser added nothing.
    """

    parts: Parts
    meetings: tuple[Coercion, ...] = field(default=(), compare=False, repr=False)
    read: Parts = field(default=(), compare=False, repr=False)

    @property
    def columns(self) -> frozenset[str]:
        """Columns that the expression reads."""
        return frozenset(part.name for part in self.parts if isinstance(part, ColumnReference))

    def __str__(self) -> str:
        """Return the expression as in the document file, apart from white space and the case of columns."""
        return "".join(part if isinstance(part, str) else part.name for part in self.read or self.parts)

    def sql(self, alias: str) -> str:
        """Return the expression as SQL with every column taken from `alias`."""
        return parts_sql(self.parts, alias)


def column(name: str) -> Expression:
    """Return the expression of a column alone."""
    return Expression((ColumnReference(name),))


def parse_expression(text: str, columns: Mapping[str, str | Known], table: str) -> Expression:
    """Parse an expression over a row of `table`; as in SQL, the case of column names does not matter.

    `columns` are the table's columns with their Spark types, or with further known properties.

    Raises:
        ValueError: the expression contains a forbidden part, or a word that is no column of the table.
    """
    parser = ExpressionParser(text, columns, table)
    try:
        parser.whole()
    except RecursionError:
        raise ValueError("the expression is nested too deeply") from None
    return Expression(parser.parts, tuple(parser.meetings), parser.read)
