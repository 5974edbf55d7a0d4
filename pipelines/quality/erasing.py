"""Remove a subject's values from recorded texts: errors, runs, and examples of quality runs.

A result of a table that held the subject loses all its examples, because an example may be a number that no
search can attribute. Its counts stay. Every other text loses each searched value where the value stands. An
error of the table or of its documents also loses each key of the subject, however short the key is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.control_table import ControlTable
from deltasmelt.bronze.lake.traces import Search, spellings
from deltasmelt.bronze.store.contract import OPERATIONS
from deltasmelt.pipelines.quality.results import RESULTS_SCHEMA, RESULTS_TABLE

if TYPE_CHECKING:
    from collections.abc import Collection

    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake

ERASED: Final = "[erased]"
_OF_COUNTS: Final = "count|proportion|lengths"
"""Expectations whose observed value is no value of a row."""
_TEXTS: Final = {"message", "remedy", "reason", "details", "observed", "error"}

_NAMES: Final = {"layer", "table_name", "name", "mode", "scope", "code", "expectation", "column", "severity",
                 "kwargs", "suite", "source", "state", "done_by", "comments", "constraints"}  # fmt: skip
"""Columns whose values come from the pipeline and its files, never from a row."""


def erase_texts(
    lake: Lake,
    control: ControlTables,
    tables: Collection[str],
    texts: Collection[str],
    *,
    names: Collection[str],
    keys: Collection[str],
) -> None:
    """Remove values from `control.errors`, `control.runs` and `quality.results`; safe to repeat.

    Args:
        tables: tables that held the subject, as ``layer.name``.
        texts: the searched values (`bronze.lake.traces.searchable`).
        names: names of the table and its documents in errors and runs.
        keys: values of the subject's keys.
    """
    search = Search(texts)
    control.rewrite_texts(lambda rows: without_keys(without_texts(rows, search), names, keys))
    place = lake.uri("quality", RESULTS_TABLE)
    if delta.open_table(place) is not None:
        results = ControlTable(place, RESULTS_SCHEMA, "One row per expectation and run")
        results.update(lambda rows: without_texts(without_examples(rows, tables), search))


def words_of_pipeline(lake: Lake) -> str:
    """Return the names, codes, modes and expectations in tables about the pipeline, one a line.

    A value that is one of these words stands in these tables for another reason, and no call can remove it.
    """
    words = set(OPERATIONS)
    places = [lake.uri("control", name) for name in ("cuts", "errors", "runs", "erasures", "comments")]
    for place in (*places, lake.uri("quality", RESULTS_TABLE), lake.uri("quality", "constraints")):
        table = delta.open_table(place)
        for path in () if table is None else table.paths():
            rows = table.read_file(path)  # type: ignore[union-attr]
            for name in _NAMES & set(rows.column_names):
                words |= set(rows[name].unique().drop_null().to_pylist())
    return "\n".join(sorted(words))


def without_examples(rows: pa.Table, tables: Collection[str]) -> pa.Table:
    """Return results in which the rows of some tables have no examples and no observed value. Pure."""
    names = pc.binary_join_element_wise(rows["layer"], rows["table_name"], ".")
    held = pc.fill_null(pc.is_in(names, pa.array(sorted(tables), pa.string())), False)
    counts = pc.fill_null(pc.match_substring_regex(rows["expectation"], _OF_COUNTS), False)
    for name in ("partial_unexpected", "observed", "error"):
        field = rows.schema.field(name)
        # An empty list stays: the file would be rewritten at each repetition without need.
        empty = pa.scalar([] if pa.types.is_list(field.type) else None, field.type)
        chosen = pc.and_(held, pc.invert(counts)) if name == "observed" else held
        values = pc.if_else(pc.and_(chosen, pc.is_valid(rows[name])), empty, rows[name])
        rows = rows.set_column(rows.schema.get_field_index(name), field, values.cast(field.type))
    return rows


def without_texts(rows: pa.Table, search: Search) -> pa.Table:
    """Return rows whose text columns have a placeholder for each value, in any spelling. Pure."""
    for field in rows.schema:
        column = rows[field.name]
        if field.name in _TEXTS | {"partial_unexpected"} and column.null_count < len(column):
            values = column.to_pylist()
            lists = pa.types.is_list(field.type)
            cells = [cell for value in values if value for cell in (value if lists else [value]) if cell]
            # The longest text first: a text may be a part of another one.
            forms = {form for text in search.in_bytes("\0".join(cells).encode()) for form in spellings(text)}
            ordered = sorted((form.decode(errors="replace") for form in forms), key=len, reverse=True)
            if ordered:
                values = [
                    [_without(cell, ordered) for cell in value]
                    if isinstance(value, list)
                    else _without(value, ordered)
                    for value in values
                ]
                changed = pa.chunked_array([pa.array(values, field.type)])
                rows = rows.set_column(rows.schema.get_field_index(field.name), field, changed)
    return rows


def without_keys(rows: pa.Table, names: Collection[str], keys: Collection[str]) -> pa.Table:
    """Return errors or runs whose texts have a placeholder for each key of the subject. Pure."""
    if not keys:
        return rows
    pattern = re.compile("|".join(rf"(?<![\w.]){re.escape(key)}(?![\w.]\w)(?!\w)" for key in sorted(keys)))
    for field in rows.schema:
        if field.name in _TEXTS - {"details"}:
            texts = zip(rows["name"].to_pylist(), rows[field.name].to_pylist(), strict=True)
            values = [pattern.sub(ERASED, text) if text and name in names else text for name, text in texts]
            column = pa.chunked_array([pa.array(values, field.type)])
            rows = rows.set_column(rows.schema.get_field_index(field.name), field, column)
    return rows


def _without(text: str | None, forms: Collection[str]) -> str | None:
    for form in forms if text else ():
        text = text.replace(form, ERASED)  # type: ignore[union-attr]
    return text
