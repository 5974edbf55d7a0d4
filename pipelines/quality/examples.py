"""Examples of breaches: always values, and whole rows with `quality.failing_rows`.

This module makes and masks everything that leaves a run: see `pipelines.quality.masking`.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.gold.builder.spark_settings import HASH
from deltasmelt.pipelines.quality.masking import MASK
from deltasmelt.pipelines.quality.suite_files import QUERY
from deltasmelt.silver.schema.catalog import OWN_COLUMNS, UNREPRESENTABLE
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from deltasmelt.pipelines.quality.expectations import Expectation, Result
    from deltasmelt.pipelines.quality.masking import Masks

SAMPLES: Final = 5
_LENGTH: Final = 200
_OBSERVED: Final = 20
"""Largest number of shown entries of an observed list or mapping."""
_BY_ORDER: Final = frozenset(
    {"expect_column_values_to_be_increasing", "expect_column_values_to_be_decreasing"}
)
_LEFT_OUT: Final = frozenset({*OWN_COLUMNS, HASH})
"""Columns of deltasmelt without information about a breach."""
_NOT_NULL: Final = "expect_column_values_to_not_be_null"
_OF_NUMBERS: Final = re.compile(r"count|proportion|lengths")
_ERROR_NAME: Final = re.compile(
    r"(?:[\w.$]+: )?(\[[A-Z][A-Z0-9_.]*\])|((?:(?:java|org|scala)\.[\w.$]+|\w+(?:Error|Exception)(?=:)))"
)
"""The class of an error at the begin of its text: Spark's, or an exception of Java or Python."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Presentation of examples: the masked columns, each table's key, the number of failing rows to show."""

    masks: Masks
    keys: Mapping[str, Sequence[str]]
    rows: int

    def of(self, result: Result, frame: DataFrame | None) -> Result:
        """Return a result with examples; `frame` has the result's rows, None: the values are the rows."""
        masked = replace(visible_form(result, self.masks), values=())
        if result.success is not False or not self.rows:
            return masked
        key = self.keys.get(result.expectation.qualified, ())
        return replace(masked, failing_rows=failing_rows(result, frame, key, self.rows, self.masks))


def visible_form(result: Result, masks: Masks) -> Result:
    """Return a result in its visible form: samples of its values, without masked values."""
    expectation = result.expectation
    samples = dict.fromkeys(_sample(expectation, value, masks) for value in result.values)
    changes: dict[str, Any] = {"samples": tuple(samples)[:SAMPLES]}
    hidden = any(masks.hides(expectation, column) for column in expectation.columns)
    if hidden and result.observed is not None and not _OF_NUMBERS.search(expectation.kind):
        changes["observed"] = MASK
    else:
        changes["observed"] = _first(result.observed)
    if result.error is not None and result.error_of_data and masks.touches(expectation):
        changes["error"] = without_values(result.error)
    return replace(result, **changes)


def without_values(error: str) -> str:
    """Return only the class of an error raised over the data: its text may quote a value, in any form."""
    match = _ERROR_NAME.match(error)
    name = next((group for group in match.groups() if group), "error") if match else "error"
    return f"{name} (text left out: masked columns)"


def failing_rows(
    result: Result, frame: DataFrame | None, key: Sequence[str], limit: int, masks: Masks
) -> tuple[dict[str, str | None], ...]:
    """Return at most `limit` failing rows, the key first, as texts.

    Without a `frame`, the rows of the result are in its values.
    """
    expectation = result.expectation
    if frame is None or QUERY in expectation.kwargs:
        rows = [value for value in result.values if isinstance(value, dict)][:limit]
    else:
        rows = _failing(expectation, frame, result.values, limit)
    return tuple(_row(expectation, row, key, masks) for row in rows)


def _failing(
    expectation: Expectation, frame: DataFrame, values: Sequence[Any], limit: int
) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - Spark is loaded by who needs it

    from deltasmelt.gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415

    # A breach of an expectation of rows depends on its columns alone, so each row with failing values fails.
    # Kinds that depend on the order of rows return values only.
    if not values or not expectation.columns or expectation.kind in _BY_ORDER:
        return []
    try:
        if expectation.derived and expectation.columns == (UNREPRESENTABLE,):
            condition = F.col(UNREPRESENTABLE).isNotNull()
        else:
            condition = functools.reduce(operator.or_, (_has(expectation, value) for value in values))
        if expectation.kind == _NOT_NULL and expectation.derived and UNREPRESENTABLE in frame.columns:
            (column,) = expectation.columns
            unrepresentable = f"map_contains_key({quote(UNREPRESENTABLE)}, {literal(column)})"
            condition &= F.expr(f"NOT coalesce({unrepresentable}, false)")
        if expectation.kwargs.get("row_condition"):
            condition &= F.expr(str(expectation.kwargs["row_condition"]))
        return [row.asDict(recursive=True) for row in frame.where(condition).limit(limit).collect()]
    except (*SPARK_ERRORS, TypeError, ValueError):  # type: ignore[misc]  # no literal of the value
        return []


def _has(expectation: Expectation, value: Any) -> Column:
    """Return the condition for a row with a value, or with all values of several columns."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    parts = _parts(expectation, value)
    if parts is None:
        raise TypeError(f"{value!r} is not a value of {expectation.columns}")
    equalities = (F.col(quote(column)).eqNullSafe(F.lit(part)) for column, part in parts.items())
    return functools.reduce(operator.and_, equalities)


def _parts(expectation: Expectation, value: Any) -> dict[str, Any] | None:
    """Return a value by its columns; None for a value of other columns."""
    columns = expectation.columns
    if isinstance(value, dict):
        return value if set(columns) == set(value) else None
    if len(columns) == 1:
        return {columns[0]: value}
    if isinstance(value, list | tuple) and len(value) == len(columns):
        return dict(zip(columns, value, strict=True))
    return None


def _sample(expectation: Expectation, value: Any, masks: Masks) -> str:
    if isinstance(value, dict):
        return _text(
            {
                name: MASK if part is not None and masks.hides(expectation, name) else part
                for name, part in value.items()
                if name not in _LEFT_OUT
            }
        )
    hidden = value is not None and any(masks.hides(expectation, column) for column in expectation.columns)
    return MASK if hidden else _text(value)


def _row(
    expectation: Expectation, row: dict[str, Any], key: Sequence[str], masks: Masks
) -> dict[str, str | None]:
    names = [name for name in key if name in row]
    names += [name for name in row if name not in key and name not in _LEFT_OUT]
    return {
        name: None if row[name] is None else MASK if masks.hides(expectation, name) else _text(row[name])
        for name in names
    }


def _text(value: object) -> str:
    if isinstance(value, dict | list | tuple):
        text = json.dumps(_with_text_keys(value), default=str, ensure_ascii=False)
    else:
        text = "NULL" if value is None else str(value)
    return text if len(text) <= _LENGTH else text[: _LENGTH - 1] + "…"


def _first(observed: Any) -> Any:
    """Return the observed value, shortened: some expectations return all distinct values of a column."""
    if isinstance(observed, str):
        return _text(observed)
    if isinstance(observed, dict):
        items = list(observed.items())
        omitted = {"…": f"{len(items) - _OBSERVED} more"} if len(items) > _OBSERVED else {}
        return {name: _first(item) for name, item in items[:_OBSERVED]} | omitted
    if isinstance(observed, list | tuple):
        omission = [f"… {len(observed) - _OBSERVED} more"] if len(observed) > _OBSERVED else []
        return [_first(item) for item in observed[:_OBSERVED]] + omission
    return observed


def _with_text_keys(value: object) -> object:
    """Return a value for JSON: keys of maps, such as dates or decimals, become texts."""
    if isinstance(value, dict):
        return {str(name): _with_text_keys(item) for name, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list | tuple) else value
