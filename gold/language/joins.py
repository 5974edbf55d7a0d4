"""By which columns documents find the rows of a table. Pure: definitions in, names out.

An incremental run looks for the children of a few roots. Where these lie together in the files of a silver
table, few pages are read (`gold.incremental.key_lists`). So these columns are what a table is best clustered
by, if its own key is not among them: the foreign key of a `many` or an aggregate, and of a link table the
columns that lead to the parent.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from bronze.identifiers import TableName
from gold.language.model import AggregateField, ManyField, ObjectField, OneField, entry_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gold.language.document import Document

_MOST: Final = 2
"""Columns to cluster by: with each one more, rows of one value lie in more places."""


def join_columns(documents: Iterable[Document]) -> dict[TableName, tuple[str, ...]]:
    """For each table that documents find by other columns than of a `one`: the first two of these columns.

    Args:
        documents: in their order; a column that more of them join by does not count more.
    """
    found: defaultdict[TableName, dict[str, None]] = defaultdict(dict)
    for document in documents:
        for table, columns in _joins(document.definition.fields):
            found[table].update(dict.fromkeys(columns))
    return {table: tuple(columns)[:_MOST] for table, columns in found.items()}


def _joins(entries: Iterable[str | dict[str, Any]]) -> Iterator[tuple[TableName, tuple[str, ...]]]:
    for entry in entries:
        spec = None if isinstance(entry, str) else entry[entry_name(entry)]
        if isinstance(spec, ObjectField):
            yield from _joins(spec.object)
        elif isinstance(spec, OneField):
            yield from _joins(spec.fields)
        elif isinstance(spec, ManyField | AggregateField):
            yield from _of(spec)


def _of(spec: ManyField | AggregateField) -> Iterator[tuple[TableName, tuple[str, ...]]]:
    for step in spec.join_path:
        yield TableName.parse(step.table), tuple(step.on)
    if spec.on is not None:
        yield TableName.parse(spec.many) if isinstance(spec, ManyField) else spec.target[0], tuple(spec.on)
    if isinstance(spec, ManyField):
        if spec.recurse is not None:
            yield TableName.parse(spec.many), tuple(spec.recurse.on)
        yield from _joins(spec.fields or ())
