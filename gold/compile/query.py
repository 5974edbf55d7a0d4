"""Hold a compiled document: the steps, and the query that assembles the document."""

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
"""Returns the SQL relation of a silver table, e.g. ``delta.`/lake/silver/orders` VERSION AS OF 7``."""


FLAGS: Final = {"several": "roots_where_one_matched_several", "cut": "roots_where_a_cycle_was_cut"}
"""Counted events of a document, with their names in a run's details.

``several``: a `one` that no key identifies matched several rows. ``cut``: gold omitted a row that recurs
below itself.
"""


_WORD: Final = re.compile(r"\b\w+\b")


KEY = "_key"
"""Column of gold tables whose documents do not contain their root's key."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A document's query.

    Attributes:
        rows: with `roots`: the rows of each table that belong to the roots, each step by earlier steps. The
            caller may compute these steps one by one under their names before `assembly`, or run one query.
        nodes: the document's nodes, over silver's tables or over `rows`.
        final: the SELECT over `nodes`: the fields, then `KEY` if needed, then a `flag_column` for each flag.
        columns: names of the query's columns in the gold table.
        fields: names of the document's own fields among `columns`.
        key: the root's key as expressions over `columns`.
        flags: the `FLAGS` that the document can raise.
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
        """Steps of `rows` worth computing first: steps read more than once, or read by a shared step."""
        texts = [step.sql for step in (*self.rows, *self.nodes)] + [self.final]
        times = Counter(word for text in texts for word in _WORD.findall(text))
        names_needed: set[str] = set()
        for step in reversed(self.rows):  # each step reads only earlier steps
            if times[step.name] > 1 or step.name in names_needed:
                names_needed.update([step.name, *_WORD.findall(step.sql)])
        return tuple(step for step in self.rows if step.name in names_needed)

    @property
    def assembly(self) -> str:
        """The document as one SELECT over views with the names of `shared`."""
        shared = self.shared
        return with_steps((*(step for step in self.rows if step not in shared), *self.nodes), self.final)


def flag_column(flag: str) -> str:
    """Return the column of the compiled query that shows for each root whether a flag was raised."""
    return f"_deltasmelt_{flag}"


def counts_of(flags: Iterable[str]) -> list[str]:
    """Return aggregates for the number of documents that raised each of `flags`."""
    return [f"count_if({flag_column(flag)}) AS {flag}" for flag in flags]
