"""Pieces of SQL text that the queries of documents are made of. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from silver.sql import comment, indented, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gold.language.notation import OrderedColumn


@dataclass(frozen=True, slots=True)
class CommonTable:
    """A named SELECT of a query.

    Attributes:
        comment: what it gives, for people.
    """

    name: str
    comment: str
    sql: str


def with_steps(steps: Sequence[CommonTable], final: str) -> str:
    """A query whose common table expressions are the steps."""
    if not steps:
        return final
    listed = [f"{comment(step.comment)}\n{step.name} AS (\n{indented(step.sql, '  ')}\n)" for step in steps]
    return "WITH\n" + ",\n".join(listed) + "\n" + final


def select(
    columns: Sequence[str],
    source: str,
    joins: Sequence[str] = (),
    where: Sequence[str] = (),
    *,
    hint: str = "",
) -> str:
    """A SELECT, a column to a line."""
    lines = [
        "SELECT" + (f" /*+ {hint} */" if hint else ""),
        indented(",\n".join(columns), "  "),
        f"FROM {source}",
        *joins,
    ]
    if where:
        conditions = [f"({condition})" for condition in where] if len(where) > 1 else list(where)
        lines.append("WHERE " + "\n  AND ".join(conditions))
    return "\n".join(lines)


def subquery(query: str) -> str:
    """A query as a relation."""
    return f"(\n{indented(query, '  ')}\n) AS s"


def struct(pairs: Iterable[tuple[str, str]]) -> str:
    """A struct from names and expressions, one to a line where they are many."""
    parts = [f"{literal(name)}, {expression}" for name, expression in pairs]
    flat = ", ".join(parts)
    if len(flat) <= 80 and "\n" not in flat:
        return f"named_struct({flat})"
    return "named_struct(\n" + indented(",\n".join(parts), "  ") + "\n)"


def equal(pairs: Sequence[tuple[str, str]], this: str, other: str) -> str:
    """That columns of one alias equal those of another, pair by pair."""
    return " AND ".join(f"{quote(this, left)} = {quote(other, right)}" for left, right in pairs)


def numbered(keys: Sequence[str]) -> list[str]:
    """Expressions as the columns ``k0, k1 …``."""
    return [f"{key} AS k{index}" for index, key in enumerate(keys)]


def row_number(groups: Sequence[str], order: Sequence[str]) -> str:
    """The place of a row in its group, from 1."""
    return f"row_number() OVER (PARTITION BY {', '.join(groups)} ORDER BY {', '.join(order)})"


def ordered(wanted: OrderedColumn, value: str) -> str:
    """One term of an ORDER BY, NULLs placed explicitly."""
    direction = "DESC" if wanted.descending else "ASC"
    return f"{value} {direction} NULLS {'FIRST' if wanted.nulls_first else 'LAST'}"


def filtered(conditions: Sequence[str]) -> str:
    """What makes an aggregate take only some rows of its group."""
    return f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""


def either(*conditions: str) -> str:
    """That one of some conditions holds; empty ones are none."""
    return " OR ".join(condition for condition in conditions if condition)
