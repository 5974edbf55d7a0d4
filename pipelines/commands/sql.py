"""`smelt sql`: a statement over the lake at one cut, printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bronze.errors import DefiniteError
from pipelines.commands.context import require_lake, spark_for
from pipelines.spark.lake_sql import LakeSql, cut_of, parse_as_of
from pipelines.terminal.jvm_errors import spark_message
from silver.sql import JSON_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from pipelines.settings import Pipeline
    from pipelines.terminal.output import Output


def run_sql(
    pipeline: Pipeline, statement: str, output: Output, *, as_of: str | None = None, limit: int = 1000
) -> None:
    """Run one statement at one cut and print its rows.

    Raises:
        SmeltError: there is no such cut, or Spark refuses the statement.
    """
    at = None if as_of is None else parse_as_of(as_of)
    require_lake(pipeline)
    cut = cut_of(pipeline, at, statement=statement)
    with spark_for(pipeline, output) as spark:
        print_rows(LakeSql(spark, pipeline, cut).query(statement), output, limit=limit)
        if not output.json:
            moment = f" ({cut.commit_ts:%Y-%m-%d %H:%M:%S} UTC)" if cut.commit_ts else ""
            output.say(f"as of {cut.commit_lsn}{moment}")


def print_rows(frame: DataFrame, output: Output, *, limit: int) -> None:
    """Print a result: a table of at most `limit` rows, or all rows as JSON lines.

    Values are turned into text by Spark, in the session's time zone (UTC), so that no machine's own zone
    shows.

    Raises:
        DefiniteError: the statement fails while it runs.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - Spark is up by now

    if not frame.columns:
        return
    try:
        if output.json:
            for text in _json_rows(frame):
                output.line(text)
            return
        columns = frame.columns
        types = [type_name for _, type_name in frame.dtypes]
        rows = _text_frame(frame, types).limit(limit + 1).collect()
    except PySparkException as error:
        raise DefiniteError(spark_message(error), code="sql", where="SQL") from None
    numbers = [
        column
        for column, type_name in zip(columns, types, strict=True)
        if type_name.startswith(("decimal", "int", "bigint", "smallint", "tinyint", "double", "float"))
    ]
    output.table(columns, [tuple(row) for row in rows[:limit]], right=numbers)
    if len(rows) > limit:
        output.say(f"the first {limit} rows; --limit shows more, --output json all")


def _text_frame(frame: DataFrame, types: list[str]) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415

    positions = [f"_{index}" for index in range(len(types))]  # names may repeat, or hold dots
    plain = frame.toDF(*positions)
    return plain.select(
        *(
            f.to_json(position, JSON_OPTIONS).alias(position)
            if type_name.startswith(("struct", "array", "map"))
            else f.base64(position).alias(position)
            if type_name == "binary"
            else f.col(position).cast("string").alias(position)
            for position, type_name in zip(positions, types, strict=True)
        )
    )


def _json_rows(frame: DataFrame) -> Iterator[str]:
    from pyspark.sql import functions as f  # noqa: PLC0415

    rows: Any = frame.select(f.to_json(f.struct(f.col("*")), JSON_OPTIONS))
    for row in rows.toLocalIterator():
        yield row[0]
