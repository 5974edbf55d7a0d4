"""Suite files: the expectations of the data's owners, in YAML. Strict; every error names file and line.

    table: silver.orders
    suite: orders                      # default: the file's name
    expectations:
      - expectation: expect_column_values_to_be_between
        column: total
        kwargs: {min_value: 0}
        severity: warning              # error (default), warning, info
        note: A negative total is a refund that was booked as an order.
      - sql: SELECT * FROM {batch} WHERE shipped_at < ordered_at     # the rows that break the rule

Names and arguments are Great Expectations' own. The run checks them after loading Great Expectations
(`pipelines.quality.engine`), and names of tables and columns against the cut. This module checks everything
else. An unreadable file fails the run, after the run of the other files.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from deltasmelt.bronze.config.sections import Section, in_the_form
from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.config.validation import validate
from deltasmelt.bronze.config.yaml_file import read_yaml
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.pipelines.quality.expectations import DERIVED_SUITES, FOREIGN_KEY, Expectation, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deltasmelt.bronze.lake.location import Layer

_LAYERS: Final = ("bronze", "silver", "gold")
_COLUMN_ARGUMENTS: Final = ("column", "column_A", "column_B")
_COLUMN_LISTS: Final = ("column_list", "columns")
QUERY: Final = "unexpected_rows_query"
OF_QUERY: Final = "unexpected_rows_expectation"
_PARAMETER: Final = "$PARAMETER"
_PLACEHOLDER: Final = re.compile(r"(?<!\{)\{([^{}]+)\}(?!\})")


Comparison: TypeAlias = Literal["exact", "ignore case", "ignore trailing spaces", "as numbers"]


def _our_severity(value: object) -> object:
    """Translate Great Expectations' word for an error."""
    return "error" if value == "critical" else value


class _Item(Section):
    expectation: Annotated[
        str,
        in_the_form(
            "expect_[a-z0-9_]+|unexpected_rows_expectation", "expect_… or unexpected_rows_expectation"
        ),
    ]
    column: str | None = None
    kwargs: dict[str, Any] = Field(default_factory=dict)
    severity: Annotated[Severity, BeforeValidator(_our_severity)] = "error"
    note: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _rule(cls, rule: Any) -> Any:
        """Turn a rule in SQL into Great Expectations' expectation of a query."""
        if not isinstance(rule, dict) or "sql" not in rule:
            return rule
        extra_keys = [name for name in ("expectation", "column", "kwargs") if name in rule]
        if extra_keys:
            raise ValueError(f"sql cannot be combined with {' and '.join(extra_keys)}")
        if not isinstance(rule["sql"], str) or not rule["sql"].strip():
            raise ValueError("sql: expected a SELECT that returns the rows that break the rule")
        settings = {name: value for name, value in rule.items() if name != "sql"}
        return {**settings, "expectation": OF_QUERY, "kwargs": {QUERY: rule["sql"]}}

    @field_validator("kwargs")
    @classmethod
    def _values_alone(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Refuse suite parameters, for which Great Expectations would find no value."""
        if _names_parameter(kwargs):
            raise ValueError(f"{_PARAMETER} has no value here; write the value itself")
        return kwargs

    @model_validator(mode="after")
    def _column_once(self) -> _Item:
        if self.column is not None and "column" in self.kwargs:
            raise ValueError("column occurs twice: next to kwargs and in kwargs")
        return self


def _names_parameter(value: object) -> bool:
    """Check whether a value contains one of Great Expectations' suite parameters, at any depth."""
    if isinstance(value, dict):
        return _PARAMETER in value or any(map(_names_parameter, value.values()))
    return isinstance(value, list) and any(map(_names_parameter, value))


class ForeignKeyArguments(Section):
    """Arguments of `FOREIGN_KEY`.

    Attributes:
        columns: columns of the suite's table.
        references: name of the parent, ``silver.customers``.
        referenced_columns: columns of the parent, in the order of `columns`.
        name: name of the constraint, if any.
        compare: comparison of each pair, if not by equality.
    """

    columns: Annotated[list[str], Field(min_length=1)]
    references: str
    referenced_columns: Annotated[list[str], Field(min_length=1)]
    name: str | None = None
    compare: list[Comparison] | None = None

    @model_validator(mode="after")
    def _as_many(self) -> ForeignKeyArguments:
        lists = [self.referenced_columns, self.columns if self.compare is None else self.compare]
        if any(len(names) != len(self.columns) for names in lists):
            raise ValueError("columns, referenced_columns and compare must have equal lengths")
        return self


class _SuiteFile(Section):
    table: str
    suite: Annotated[str, Field(min_length=1)] | None = None
    expectations: Annotated[list[_Item], Field(min_length=1)]

    @field_validator("suite")
    @classmethod
    def _not_derived(cls, suite: str | None) -> str | None:
        if suite in DERIVED_SUITES:
            raise ValueError(f"{suite!r} is the name of a derived suite; choose another")
        return suite

    @field_validator("table")
    @classmethod
    def _layer_and_name(cls, table: str) -> str:
        layer, dot, name = table.partition(".")
        if layer not in _LAYERS or not dot or not name:
            raise ValueError(
                f"{table!r} is not a table of bronze, silver or gold (expected e.g. silver.orders)"
            )
        return table


def load_suite(path: Path, display_path: str | None = None) -> list[Expectation]:
    """Return the expectations of one suite file; `display_path` names the file in messages and results.

    Raises:
        ConfigurationError: unreadable, or not of this form; ``file:line``.
    """
    file = read_yaml(path)
    suite = validate(_SuiteFile, file)
    layer, _, name = suite.table.partition(".")
    return [
        Expectation(
            layer=cast("Layer", layer),
            table=name,
            suite=suite.suite or (f"{path.stem} file" if path.stem in DERIVED_SUITES else path.stem),
            kind=item.expectation,
            kwargs=({} if item.column is None else {"column": item.column}) | item.kwargs,
            severity=item.severity,
            note=item.note,
            where=f"{display_path or path}:{file.line(('expectations', index), key=True)}",
        )
        for index, item in enumerate(suite.expectations)
    ]


def load_suites(paths: Sequence[Path], folder: Path) -> tuple[list[Expectation], list[str]]:
    """Return all suites, and messages about unreadable files, with names relative to a folder."""
    expectations: list[Expectation] = []
    errors: list[str] = []
    for path in paths:
        label = str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
        try:
            expectations += load_suite(path, label)
        except ConfigurationError as error:
            errors.append(str(error).replace(str(path), label))
    return expectations, errors


def misnamed(expectation: Expectation, tables: Mapping[str, Sequence[str]]) -> str | None:
    """Return the fault of the names in an expectation, with the nearest valid name; None for valid names.

    `tables` has the columns of every known table (``silver.orders``).
    """
    if expectation.qualified not in tables:
        return f"no table {expectation.qualified!r} in the cut{suggestion(expectation.qualified, tables)}"
    columns = tables[expectation.qualified]
    argument_columns = [expectation.kwargs[name] for name in _COLUMN_ARGUMENTS if name in expectation.kwargs]
    for name in _COLUMN_LISTS:
        value = expectation.kwargs.get(name, [])
        if not isinstance(value, list):
            return f"{name}: expected a list of columns"
        argument_columns += value
    for column in argument_columns:
        if column not in columns and expectation.kind != "expect_column_to_exist":
            return f"no column {column!r} in {expectation.qualified}{suggestion(str(column), columns)}"
    if expectation.kind == FOREIGN_KEY:
        return _misnamed_reference(expectation, tables)
    return _misnamed_query(expectation, tables)


def placeholders(query: str) -> list[str]:
    """Return the names in single braces of a query, including ``{batch}``."""
    return _PLACEHOLDER.findall(query)


def _misnamed_query(expectation: Expectation, tables: Mapping[str, Sequence[str]]) -> str | None:
    query = expectation.kwargs.get(QUERY)
    if query is None:
        return None
    tables_named = placeholders(str(query))
    if "batch" not in tables_named:
        return f"{QUERY} does not read {{batch}}, the table of the suite at the cut"
    for name in tables_named:
        if name != "batch" and name not in tables:
            return f"{QUERY} names {{{name}}}, which is not a table of the cut{suggestion(name, tables)}"
    return None


def _misnamed_reference(expectation: Expectation, tables: Mapping[str, Sequence[str]]) -> str | None:
    try:
        reference = ForeignKeyArguments.model_validate(expectation.kwargs)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            return f"unknown argument {name!r}{suggestion(name, ForeignKeyArguments.model_fields)}"
        return f"{name}: {first['msg']}".removeprefix(": ")
    if reference.references not in tables:
        table = reference.references
        return f"references: no table {table!r} in the cut{suggestion(table, tables)}"
    columns = tables[reference.references]
    for column in reference.referenced_columns:
        if column not in columns:
            return f"no column {column!r} in {reference.references}{suggestion(column, columns)}"
    return None


def check_suites(
    paths: Sequence[Path], folder: Path, tables: Mapping[str, Sequence[str]] | None = None
) -> list[str]:
    """Return the faults of suite files for `smelt check`, without Spark: ``file:line: message`` for each.

    `tables` has the columns of the future tables, if known.
    """
    expectations, errors = load_suites(paths, folder)
    if tables is not None:
        checked = ((expectation, misnamed(expectation, tables)) for expectation in expectations)
        errors += [
            f"{expectation.where}: {message}" for expectation, message in checked if message is not None
        ]
    return errors
