"""A compiled document: its steps, and the query that assembles it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from deltasmelt.gold.compile.clauses import CommonTable, with_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from deltasmelt.bronze.identifiers import TableName

TableSql: TypeAlias = "Callable[[TableName], str]"
"""Gives the SQL relation of a silver table, e.g. ``delta.`/lake/silver/orders` VERSION AS OF 7``."""


FLAGS: Final = {"several": "roots_where_one_matched_several", "cut": "roots_where_a_cycle_was_cut"}
"""What may happen in a document and is counted, and under which name in a run's details: a `one` that is not
found by a key matched several rows; a row that recurs below itself was left out."""


_WORD: Final = re.compile(r"\b\w+\b")


KEY = "_key"
"""Column of gold tables whose documents do not hold their root's key."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A document's query.

    Attributes:
        rows: with `roots`: the rows of each table that belong to them, each step by the steps before it. They
            can be computed one by one under their names before `assembly`, or stand in one query with it.
        nodes: the document's nodes, over silver's tables or over `rows`.
        final: the SELECT over `nodes`: the fields, then `KEY` where needed, then a column (`flag_column`) for
            each of `flags`.
        columns: names of the columns that the gold table takes from it.
        fields: names of the document's own fields among them.
        key: the root's key as expressions over these columns.
        key_types: their types.
        flags: those of `FLAGS` that can happen.
    """

    rows: tuple[CommonTable, ...]
    nodes: tuple[CommonTable, ...]
    final: str
    columns: tuple[str, ...]
    fields: tuple[str, ...]
    key: tuple[str, ...]
    key_types: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def sql(self) -> str:
        """The whole document as one SELECT."""
        return with_steps((*self.rows, *self.nodes), self.final)

    @property
    def shared(self) -> tuple[CommonTable, ...]:
        """Those of `rows` that are worth computing first: read more than once, or by another such."""
        texts = [step.sql for step in (*self.rows, *self.nodes)] + [self.final]
        times = Counter(word for text in texts for word in _WORD.findall(text))
        taken: set[str] = set()
        for step in reversed(self.rows):  # each reads only those before it
            if times[step.name] > 1 or step.name in taken:
                taken.update([step.name, *_WORD.findall(step.sql)])
        return tuple(step for step in self.rows if step.name in taken)

    @property
    def assembly(self) -> str:
        """The document as one SELECT over views named as `shared`."""
        shared = self.shared
        return with_steps((*(step for step in self.rows if step not in shared), *self.nodes), self.final)


def flag_column(flag: str) -> str:
    """Column of the compiled query that says of each root whether one of `FLAGS` happened."""
    return f"_deltasmelt_{flag}"


def counting(flags: Iterable[str], source: str) -> str:
    """A query for the number of documents of `source` where each of `flags` happened."""
    counts = ", ".join(f"count_if({flag_column(flag)}) AS {flag}" for flag in flags)
    return f"SELECT {counts} FROM {source}"
