"""Examples of what breaks an expectation: values always, whole rows where `quality.failing_rows` asks.

Whole rows are found again by the values that the expectation gave as breaking it. Whether a row breaks an
expectation of rows is a function of these columns alone, so each row with such values breaks it. (Not so
where the order of rows counts: these kinds give values only.) The rows are selected by Spark, and no more
than asked for reach the driver.

All that leaves a run is made here, and masked here: see `pipelines.quality.masking`.
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
"""Of a list or a mapping that was observed, so many entries are shown."""
_BY_ORDER: Final = frozenset(
    {"expect_column_values_to_be_increasing", "expect_column_values_to_be_decreasing"}
)
_LEFT_OUT: Final = frozenset({*OWN_COLUMNS, HASH})
"""Columns of ours, which say nothing of why a row breaks an expectation."""
_NOT_NULL: Final = "expect_column_values_to_not_be_null"
_OF_NUMBERS: Final = re.compile(r"count|proportion|lengths")
_ERROR_NAME: Final = re.compile(
    r"(?:[\w.$]+: )?(\[[A-Z][A-Z0-9_.]*\])|((?:(?:java|org|scala)\.[\w.$]+|\w+(?:Error|Exception)(?=:)))"
)
"""The class of an error at the begin of its text: Spark's, or that of an exception of Java or Python."""


@dataclass(frozen=True, slots=True)
class Examples:
    """How a run shows examples.

    Attributes:
        masks: what is not shown.
        keys: of each table, the columns that a row is found by.
        rows: so many failing rows are shown of each failed expectation.
    """

    masks: Masks
    keys: Mapping[str, Sequence[str]]
    rows: int

    def of(self, result: Result, frame: DataFrame | None) -> Result:
        """A result with its examples; `frame` holds the rows it speaks of, None: its values are the rows."""
        made = replace(shown(result, self.masks), values=())
        if result.success is not False or not self.rows:
            return made
        key = self.keys.get(result.expectation.qualified, ())
        return replace(made, failing_rows=failing_rows(result, frame, key, self.rows, self.masks))


def shown(result: Result, masks: Masks) -> Result:
    """A result as it may be seen: samples of its values, nothing in it that is masked."""
    about = result.expectation
    samples = dict.fromkeys(_sample(about, value, masks) for value in result.values)
    changes: dict[str, Any] = {"samples": tuple(samples)[:SAMPLES]}
    hidden = any(masks.hides(about, column) for column in about.columns)
    if hidden and result.observed is not None and not _OF_NUMBERS.search(about.kind):
        changes["observed"] = MASK
    else:
        changes["observed"] = _first(result.observed)
    if result.error is not None and result.error_of_data and masks.touches(about):
        changes["error"] = without_values(result.error)
    return replace(result, **changes)


def without_values(error: str) -> str:
    """Of an error that was raised over the data its class alone: its text may quote a value, in any form."""
    found = _ERROR_NAME.match(error)
    name = next((one for one in found.groups() if one), "error") if found else "error"
    return f"{name} (text left out: masked columns)"


def failing_rows(
    result: Result, frame: DataFrame | None, key: Sequence[str], limit: int, masks: Masks
) -> tuple[dict[str, str | None], ...]:
    """Rows that break an expectation, the key first, as texts.

    Args:
        result: of a failed expectation, with its values.
        frame: the rows that it speaks of; None where its values are the rows.
        key: columns that a row is found by.
        limit: so many at most.
        masks: what is not shown.
    """
    about = result.expectation
    if frame is None or QUERY in about.kwargs:
        rows = [value for value in result.values if isinstance(value, dict)][:limit]
    else:
        rows = _found_again(about, frame, result.values, limit)
    return tuple(_row(about, row, key, masks) for row in rows)


def _found_again(
    about: Expectation, frame: DataFrame, values: Sequence[Any], limit: int
) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - Spark is loaded by who needs it

    from deltasmelt.gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415

    if not values or not about.columns or about.kind in _BY_ORDER:
        return []
    try:
        if about.derived and about.columns == (UNREPRESENTABLE,):
            condition = F.col(UNREPRESENTABLE).isNotNull()
        else:
            condition = functools.reduce(operator.or_, (_has(about, value) for value in values))
        if about.kind == _NOT_NULL and about.derived and UNREPRESENTABLE in frame.columns:
            (column,) = about.columns
            kept = f"map_contains_key({quote(UNREPRESENTABLE)}, {literal(column)})"
            condition &= F.expr(f"NOT coalesce({kept}, false)")
        if about.kwargs.get("row_condition"):
            condition &= F.expr(str(about.kwargs["row_condition"]))
        return [row.asDict(recursive=True) for row in frame.where(condition).limit(limit).collect()]
    except (*SPARK_ERRORS, TypeError, ValueError):  # type: ignore[misc]  # no literal of the value
        return []


def _has(about: Expectation, value: Any) -> Column:
    """The condition of a row to have a value, or all values of several columns."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    parts = _parts(about, value)
    if parts is None:
        raise TypeError(f"{value!r} is no value of {about.columns}")
    same = (F.col(quote(column)).eqNullSafe(F.lit(one)) for column, one in parts.items())
    return functools.reduce(operator.and_, same)


def _parts(about: Expectation, value: Any) -> dict[str, Any] | None:
    """A value by its columns; None where it is not of them."""
    columns = about.columns
    if isinstance(value, dict):
        return value if set(columns) == set(value) else None
    if len(columns) == 1:
        return {columns[0]: value}
    if isinstance(value, list | tuple) and len(value) == len(columns):
        return dict(zip(columns, value, strict=True))
    return None


def _sample(about: Expectation, value: Any, masks: Masks) -> str:
    if isinstance(value, dict):
        return _text(
            {
                name: MASK if one is not None and masks.hides(about, name) else one
                for name, one in value.items()
                if name not in _LEFT_OUT
            }
        )
    hidden = value is not None and any(masks.hides(about, column) for column in about.columns)
    return MASK if hidden else _text(value)


def _row(about: Expectation, row: dict[str, Any], key: Sequence[str], masks: Masks) -> dict[str, str | None]:
    names = [name for name in key if name in row]
    names += [name for name in row if name not in key and name not in _LEFT_OUT]
    return {
        name: None if row[name] is None else MASK if masks.hides(about, name) else _text(row[name])
        for name in names
    }


def _text(value: object) -> str:
    if isinstance(value, dict | list | tuple):
        text = json.dumps(_with_text_keys(value), default=str, ensure_ascii=False)
    else:
        text = "NULL" if value is None else str(value)
    return text if len(text) <= _LENGTH else text[: _LENGTH - 1] + "…"


def _first(observed: Any) -> Any:
    """What was observed, cut: some expectations give all the different values that a column has."""
    if isinstance(observed, str):
        return _text(observed)
    if isinstance(observed, dict):
        items = list(observed.items())
        rest = {"…": f"{len(items) - _OBSERVED} more"} if len(items) > _OBSERVED else {}
        return {name: _first(one) for name, one in items[:_OBSERVED]} | rest
    if isinstance(observed, list | tuple):
        more = [f"… {len(observed) - _OBSERVED} more"] if len(observed) > _OBSERVED else []
        return [_first(one) for one in observed[:_OBSERVED]] + more
    return observed


def _with_text_keys(value: object) -> object:
    """A value as JSON can hold it: keys of maps, which may be dates or decimals, as texts."""
    if isinstance(value, dict):
        return {str(name): _with_text_keys(one) for name, one in value.items()}
    return [_with_text_keys(one) for one in value] if isinstance(value, list | tuple) else value
