"""Great Expectations, silenced and fast.

Only this module loads Great Expectations, at the first quality run of a process: the import takes seconds.

**Two passes.** For each expectation of rows, Great Expectations computes the number of breaches in one
aggregation of the whole table, and then runs two more queries for failing values, even without any breach. So
the first pass requests the verdict alone (``BOOLEAN_ONLY``). Only failed expectations, and expectations with
a tolerance (``mostly``), are evaluated again with values. A whole suite without a failure costs few jobs.

An exception for one expectation (a text compared with a number) becomes this expectation's error alone.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import warnings
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.pipelines.quality.expectations import FOREIGN_KEY, Result
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from deltasmelt.pipelines.quality.expectations import Expectation

LOOKED_AT: Final = 20
"""Number of failing values searched for distinct values."""
_SEVERITY: Final = {"error": "critical", "warning": "warning", "info": "info"}
"""Great Expectations' severities for deltasmelt's; nothing depends on them."""
_ERROR_CLASS: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\]")
_ERROR_LENGTH: Final = 500
_OF_SOURCES: Final = frozenset({"expect_query_results_to_match_comparison", "unexpected_rows_expectation"})
"""Kinds evaluated in Great Expectations' own session, without the cut."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COLUMN_ARGUMENTS: Final = ("column", "column_A", "column_B", "column_list", "column_set")
_SPARK_MODULES: Final = (
    "pyspark.java_gateway", "pyspark.sql.session", "pyspark.sql.conf", "pyspark.sql.catalog",
    "pyspark.sql.functions", "pyspark.sql.readwriter", "pyspark.sql.classic.dataframe",
)  # fmt: skip
"""Modules loaded by a session at its start and first use."""
_NOT_ARGUMENTS: Final = frozenset(
    {"id", "meta", "notes", "result_format", "description", "catch_exceptions", "rendered_content",
     "severity", "windows", "batch_id"}
)  # fmt: skip
"""Fields of every expectation that a suite file never sets, or sets outside of the arguments."""


class Engine:
    """Great Expectations over Spark frames, in memory alone, without a project folder.

    `failing_rows` is the number of failing rows needed for each failed expectation.

    Raises:
        ConfigurationError: Great Expectations is not installed.
    """

    def __init__(self, failing_rows: int = 0) -> None:
        with _quiet():
            self._gx = _load()
            context = self._gx.get_context(mode="ephemeral")
            context.variables.progress_bars = {"globally": False, "metric_calculations": False}
            # What to keep in memory is decided by who calls.
            self._source = context.data_sources.add_spark(name="lake", persist=False)
        self._count = 0
        self._looked_at = max(LOOKED_AT, failing_rows)

    @property
    def version(self) -> str:
        """Great Expectations' version."""
        return str(self._gx.__version__)

    def evaluate(self, frame: DataFrame, expectations: Sequence[Expectation], rows: int) -> list[Result]:
        """Return the result of each expectation of one table, in order; names are valid, no rule is SQL."""
        # Great Expectations resolves column names as Spark paths, so `a.b` would be field b of a. Such
        # columns get a plain name for the run.
        names = _plain_names(frame.columns)
        plain = frame.selectExpr(*(f"{quote(name)} AS {quote(new)}" for name, new in names.items()))
        results: dict[int, Result] = {}
        built: dict[int, Any] = {}
        with _quiet():
            for index, expectation in enumerate(expectations):
                rule = self._build(index, expectation, names)
                if isinstance(rule, str):
                    results[index] = Result(expectation, None, error=rule)
                else:
                    built[index] = rule
            if built:
                results |= self._validate(plain, expectations, rows, built)
        original_names = {new: name for name, new in names.items()}
        return [_named(results[index], original_names) for index in range(len(expectations))]

    def _build(self, index: int, expectation: Expectation, names: Mapping[str, str]) -> Any | str:
        """Return Great Expectations' object, or the fault of the expectation."""
        registry = self._gx.expectations.registry
        implementations = registry.list_registered_expectation_implementations()
        if expectation.kind in _OF_SOURCES:
            return f"{expectation.kind} reads no table of the cut; write a rule with sql"
        if expectation.kind not in implementations:
            hint = suggestion(expectation.kind, [*implementations, FOREIGN_KEY])
            return f"unknown expectation {expectation.kind!r}{hint}"
        kind = registry.get_expectation_impl(expectation.kind)
        arguments = [name for name in kind.__fields__ if name not in _NOT_ARGUMENTS]
        for name in expectation.kwargs:
            if name not in arguments:
                return f"{expectation.kind}: unknown argument {name!r}{suggestion(name, arguments)}"
        kwargs = {name: _renamed(name, value, names) for name, value in expectation.kwargs.items()}
        try:
            return kind(**kwargs, severity=_SEVERITY[expectation.severity], meta={"index": index})
        except (ValueError, TypeError) as error:  # a ValidationError of pydantic is a ValueError
            return f"{expectation.kind}: {_complaint(error)}"

    def _validate(
        self, frame: DataFrame, expectations: Sequence[Expectation], rows: int, built: dict[int, Any]
    ) -> dict[int, Result]:
        self._count += 1
        asset = self._source.add_dataframe_asset(f"table {self._count}")
        batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": frame})
        results: dict[int, Result] = {}
        of_rows = {index: rule for index, rule in built.items() if self._verdict_suffices(rule)}
        for index, outcome in self._run(batch, of_rows, "BOOLEAN_ONLY"):
            if not isinstance(outcome, Exception) and outcome.success:
                results[index] = Result(
                    expectations[index],
                    success=True,
                    element_count=rows,
                    unexpected_count=0,
                    unexpected_percent=0.0,
                )
        remaining = {index: rule for index, rule in built.items() if index not in results}
        details = {"result_format": "SUMMARY", "partial_unexpected_count": self._looked_at}
        raised: dict[int, Any] = {}
        for index, outcome in self._run(batch, remaining, details):
            results[index] = _result(expectations[index], outcome, rows)
            if results[index].success is None:
                raised[index] = built[index]
        if len(raised) > 1:  # one failing rule may fail the query that it shares with others
            for index, rule in raised.items():
                for _, outcome in self._run(batch, {index: rule}, details):
                    results[index] = _result(expectations[index], outcome, rows)
        return results

    def _run(
        self, batch: Any, built: Mapping[int, Any], result_format: str | dict[str, Any]
    ) -> Iterator[tuple[int, Any]]:
        if not built:
            return
        suite = self._gx.ExpectationSuite(name="suite", expectations=list(built.values()))
        try:
            outcomes = list(batch.validate(suite, result_format=result_format).results)
        except Exception as error:  # noqa: BLE001 - one of them made it raise for all
            if len(built) == 1:
                yield next(iter(built)), error
                return
            # Some arguments raise an exception for the whole suite; then each expectation is evaluated alone.
            for index, rule in built.items():
                yield from self._run(batch, {index: rule}, result_format)
            return
        for outcome in outcomes:
            yield outcome.expectation_config.meta["index"], outcome

    def _verdict_suffices(self, made: Any) -> bool:
        """Check whether the verdict alone suffices: an expectation of all rows without a tolerance."""
        kinds = self._gx.expectations.expectation
        of_rows = (
            kinds.ColumnMapExpectation,
            kinds.ColumnPairMapExpectation,
            kinds.MulticolumnMapExpectation,
        )
        return isinstance(made, of_rows) and made.mostly == 1 and not made.row_condition


def load_in_background() -> None:
    """Load Great Expectations, which takes seconds, in a thread, in parallel with another wait.

    The end of the process need not wait for the thread. `Engine` reports missing packages.
    """
    if find_spec("pyspark") is None or find_spec("great_expectations") is None:
        return
    # Two threads loading parts of pyspark at once may each see half of a module.
    for module in _SPARK_MODULES:
        import_module(module)
    threading.Thread(target=_load_quietly, name="great-expectations", daemon=True).start()


def _load_quietly() -> None:
    with suppress(ConfigurationError):
        load()


def load() -> None:
    """Load Great Expectations, which takes seconds, without a call of Spark.

    Raises:
        ConfigurationError: Great Expectations is not installed.
    """
    with _quiet():
        _load()


def _load() -> Any:
    # Switches the analytics off, before the import.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    try:
        import great_expectations  # noqa: PLC0415 - seconds of import, and only quality needs it
        import great_expectations.expectations.expectation  # noqa: PLC0415
        import great_expectations.expectations.registry  # noqa: PLC0415
    except ImportError:
        raise _not_installed() from None
    return great_expectations


def require_installed() -> None:
    """Check the installation without loading the package; raise a ConfigurationError if it is missing."""
    if find_spec("great_expectations") is None:
        raise _not_installed()


def _not_installed() -> ConfigurationError:
    return ConfigurationError(
        "Great Expectations is not installed",
        code="quality-missing",
        remedy="pip install 'deltasmelt[spark,quality]'",
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress Great Expectations' warnings and log lines; its results have the important facts."""
    log = logging.getLogger("great_expectations")  # its loggers have their own levels, but all lead here
    handler = logging.NullHandler()
    propagate = log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.propagate = propagate
        log.removeHandler(handler)


def _plain_names(columns: Sequence[str]) -> dict[str, str]:
    """Return each column's name for the run: its own plain name, or else a free name."""
    lower_names = {name.lower() for name in columns}
    names: dict[str, str] = {}
    for name in columns:
        new = name
        if not _PLAIN_NAME.fullmatch(name):
            new = re.sub(r"\W", "_", name, flags=re.ASCII)
            while new.lower() in lower_names:
                new += "_"
            lower_names.add(new.lower())
        names[name] = new
    return names


def _renamed(argument: str, value: Any, names: Mapping[str, str]) -> Any:
    if argument == "row_condition" and isinstance(value, str):
        for name, new in names.items():
            value = value if name == new else value.replace(quote(name), quote(new))
        return value
    if argument not in _COLUMN_ARGUMENTS:
        return value
    if isinstance(value, list):
        return [names.get(str(name), name) for name in value]
    return names.get(str(value), value)


def _named(result: Result, own: Mapping[str, str]) -> Result:
    """Return a result with the values of several columns under the columns' own names."""
    if not any(isinstance(value, dict) for value in result.values):
        return result
    values = ({own.get(name, name): part for name, part in value.items()} for value in result.values)
    return replace(result, values=tuple(values))


def _complaint(error: Exception) -> str:
    """Return pydantic's first complaint, in a line; for a value with several types the last."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    first = errors()[0]
    name = first["loc"][0]
    of_name = [item["msg"] for item in errors() if item["loc"][0] == name]
    if len(of_name) > 1:
        return f"{name}: a value of a wrong kind ({of_name[0]})"
    return of_name[0] if name == "__root__" else f"{name}: {of_name[0]}"


def _result(expectation: Expectation, outcome: Any, rows: int) -> Result:
    """Return a result or exception of Great Expectations as a `Result`."""
    if isinstance(outcome, Exception):
        return failed_with(expectation, outcome, rows)
    error = _raised(outcome)
    if error is not None:
        return Result(expectation, None, element_count=rows, error=error, error_of_data=True)
    measures: dict[str, Any] = outcome.result
    return Result(
        expectation,
        success=bool(outcome.success),
        element_count=measures.get("element_count", rows),
        unexpected_count=measures.get("unexpected_count"),
        unexpected_percent=measures.get("unexpected_percent"),
        observed=measures.get("observed_value"),
        values=tuple(measures.get("partial_unexpected_list") or ()),
    )


def failed_with(expectation: Expectation, error: Exception, rows: int | None = None) -> Result:
    """Return the result of an expectation whose evaluation raised an exception; `rows` is known or None."""
    message = short_cause(str(error))
    if not message.startswith("[") and not str(error).startswith("An error occurred while calling"):
        message = f"{type(error).__name__}: {message}"[:_ERROR_LENGTH]
    return Result(expectation, None, element_count=rows, error=message, error_of_data=True)


def _raised(outcome: Any) -> str | None:
    """Return the exception caught by Great Expectations during the evaluation, in a line."""
    info: dict[str, Any] = outcome.exception_info or {}
    for details in (info, *(value for value in info.values() if isinstance(value, dict))):
        if details.get("raised_exception"):
            return short_cause(str(details.get("exception_message") or "unknown error"))
    return None


def short_cause(message: str) -> str:
    """Return the line of a message with the cause: Spark's error class or the innermost cause, if any."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["unknown error"]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    classes = [line for line in lines if _ERROR_CLASS.match(line)]
    chosen = classes[0] if classes else causes[-1] if causes else lines[0]
    if chosen.startswith("An error occurred while calling") and len(lines) > 1:
        chosen = lines[1].removeprefix(": ")
    return chosen.removeprefix("Caused by: ")[:_ERROR_LENGTH]
