"""Rules in SQL: a query that must find no row, asked on the session of the run's own tables.

Great Expectations would ask it on the process's first session. That has neither the views of the tables at
the cut nor the settings of a run beside a pipeline. It would also know columns by other names than their own
(`pipelines.quality.engine`), and leave a view behind. So it never sees these rules.

A rule is evaluated as a subquery. What is no SELECT (a statement that would change something) is no subquery
either, so it ends as a rule that could not be checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bronze.config.suggestions import suggestion
from pipelines.quality.engine import failed_with
from pipelines.quality.expectations import Result
from pipelines.quality.suite_files import QUERY, placeholders
from silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from pipelines.quality.expectations import Expectation

_ARGUMENTS: Final = (QUERY, "row_condition", "condition_parser")
_BATCH_VIEW: Final = "deltasmelt_quality_batch"
_ENDS: Final = "; \t\r\n\v\f"


def check_query(
    about: Expectation, frame: DataFrame, rows: int, views: Mapping[str, str], limit: int
) -> Result:
    """What became of a rule.

    Args:
        about: of the kind `OF_QUERY`; the tables that it names are known to be there.
        frame: the table of its suite.
        rows: how many this table has.
        views: name of a temporary view for each other table that it names in braces.
        limit: so many of the rows that it finds are kept.
    """
    from gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415 - Spark is loaded by who needs it

    for name in about.kwargs:
        if name not in _ARGUMENTS:
            said = f"{about.kind}: unknown argument {name!r}{suggestion(name, _ARGUMENTS)}"
            return Result(about, None, element_count=rows, error=said)
    query = _composed(about.kwargs.get(QUERY), views)
    if query is None:
        said = f"{about.kind}: {QUERY}: expected a SELECT with paired braces; double a literal one"
        return Result(about, None, element_count=rows, error=said)
    spark = frame.sparkSession
    condition = about.kwargs.get("row_condition")
    try:
        (frame if condition is None else frame.where(str(condition))).createOrReplaceTempView(_BATCH_VIEW)
        try:
            # On a line of its own, the bracket is not part of a comment that ends the query.
            found = spark.sql(f"SELECT * FROM (\n{query}\n)")
            count = found.count()
            taken = found.limit(limit).collect() if count else []
        finally:
            spark.catalog.dropTempView(_BATCH_VIEW)
    except SPARK_ERRORS as error:
        return failed_with(about, error, rows)
    values: tuple[dict[str, Any], ...] = tuple(row.asDict(recursive=True) for row in taken)
    return Result(
        about,
        success=count == 0,
        element_count=rows,
        unexpected_count=count,
        unexpected_percent=100 * count / rows if rows else None,
        values=values,
    )


def _composed(query: object, views: Mapping[str, str]) -> str | None:
    """The query over views; None where it is no text, or its braces do not pair."""
    if not isinstance(query, str):
        return None
    for name in placeholders(query):
        query = query if name == "batch" else query.replace("{" + name + "}", quote(views[name]))
    try:
        return query.format(batch=_BATCH_VIEW).rstrip(_ENDS)
    except (ValueError, LookupError, AttributeError):
        return None
