"""The summary of the demo: a nested document, silver beside the source, the quality report, what to try.

Everything is read from the lake as any user would read it, at the cut that the layers reached. Only the row
counts of the other side are PostgreSQL's own.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipelines.commands.quality import show_quality
from pipelines.quality.run import run_quality
from pipelines.spark.lake_sql import LakeSql
from pipelines.terminal.output import seconds_text
from silver.sql import as_json, quote

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg
    from pyspark.sql import SparkSession

    from bronze.identifiers import TableName
    from pipelines.quality.expectations import QualityResult
    from pipelines.settings import Pipeline
    from pipelines.terminal.output import Output

_DOCUMENT: Final = "customer"
_STATEMENTS: Final = (
    ("the best customers, from documents",
     ("SELECT name, country.name AS country, order_count, lifetime_value FROM gold.customer "
     "ORDER BY lifetime_value DESC NULLS LAST LIMIT 10")),
    ("revenue by country, from row state",
     ("SELECT c.name, count(*) AS orders, sum(o.total) AS revenue FROM silver.orders o "
     "JOIN silver.customers u ON u.id = o.customer_id JOIN silver.countries c ON c.id = u.country_id "
     "WHERE o.status <> 'cancelled' GROUP BY c.name ORDER BY revenue DESC")),
    ("the newest changes of customers, from the raw records",
     ("SELECT commit_ts, op, map_from_arrays(columns, new)['balance'] AS balance, unchanged "
     "FROM bronze.changes WHERE table_name = 'customers' AND op = 'update' "
     "ORDER BY commit_lsn DESC, seq DESC LIMIT 10")),
)  # fmt: skip
_COMMANDS: Final = (
    ("how changes reach a document", "explain {file} customer"),
    ("whether the documents are what a full rebuild would make", "verify {file}"),
)


@dataclass(frozen=True, slots=True)
class Count:
    """Rows of one table on both sides."""

    table: TableName
    source: int
    silver: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What the demo shows at its end.

    Attributes:
        transactions: that the shop committed.
        document: one customer as JSON.
    """

    transactions: int
    changes: int
    document: str
    counts: tuple[Count, ...]
    quality: QualityResult

    @property
    def equal(self) -> bool:
        """Whether every table of silver has as many rows as its source."""
        return all(count.source == count.silver for count in self.counts)


def summarize(
    spark: SparkSession,
    pipeline: Pipeline,
    tables: dict[TableName, str],
    source: psycopg.Connection[Any],
    *,
    transactions: int,
    changes: int,
    say: Callable[[str], None],
) -> Summary:
    """Count, pick a document, and run the quality checks.

    Args:
        spark: the session of the run.
        pipeline: the demo's pipeline.
        tables: source table to silver's name.
        source: connection to the shop, which is closed by now: nothing changes any longer.
        transactions: that the shop committed.
        changes: rows that bronze took, the first snapshot included.
        say: is told what is being done.
    """
    lake = LakeSql(spark, pipeline)
    say("counting rows on both sides")
    silver: dict[str, int] = dict(
        lake.query(
            " UNION ALL ".join(
                f"SELECT '{index}' AS place, count(*) AS n FROM {quote('silver', name)}"
                for index, name in enumerate(tables.values())
            )
        ).collect()
    )
    counts = []
    for index, table in enumerate(tables):
        row = source.execute(f"SELECT count(*) FROM {table.quoted}".encode()).fetchone()
        counts.append(Count(table, row[0] if row else 0, silver[str(index)]))
    document = _document(lake)
    say("checking the data's quality")
    quality = run_quality(spark, pipeline, report=pipeline.folder / "quality.html", progress=say)
    return Summary(transactions, changes, document, tuple(counts), quality)


def _document(lake: LakeSql) -> str:
    """A customer with some orders, addresses and tags, but not too many to read."""
    columns = [name for name in lake.query(f"SELECT * FROM gold.{_DOCUMENT}").columns if name[0] != "_"]
    rows = lake.query(
        f"SELECT {as_json(map(quote, columns))} "
        f"FROM gold.{_DOCUMENT} "
        "ORDER BY abs(size(orders) - 2) + abs(size(tags) - 2) + abs(size(addresses) - 2), id DESC LIMIT 1"
    ).collect()
    return str(rows[0][0]) if rows else "{}"


def print_summary(summary: Summary, pipeline: Pipeline, output: Output, *, seconds: float) -> None:
    """Print it."""
    output.line()
    output.line("One customer, nested from eight tables (gold.customer):", style="bold")
    output.document(summary.document)
    output.line()
    rows = [
        (
            str(count.table),
            count.source,
            count.silver,
            "equal" if count.source == count.silver else "DIFFERENT",
        )
        for count in summary.counts
    ]
    columns = ("table", "rows in PostgreSQL", "rows in silver", "")
    output.table(columns, rows, right=columns[1:3])
    output.line()
    show_quality(summary.quality, output)
    output.line()
    output.line(
        f"{summary.transactions:,} transactions of a live shop were carried through every layer "
        f"({summary.changes:,} changed rows, the first snapshot included); {seconds_text(seconds)} in all."
    )
    output.line(f"The lake is in {pipeline.lake_address().path}")
    output.line("PostgreSQL has stopped; the lake does not need it. Try next:", style="bold")
    file = shlex.quote(_short(pipeline.path))
    for what, statement in _STATEMENTS:
        output.line()
        output.line(f"# {what}", style="dim")
        output.line(f"{_program()} sql {file} {_quoted(statement)}")
    for what, words in _COMMANDS:
        output.line()
        output.line(f"# {what}", style="dim")
        output.line(f"{_program()} {words.format(file=file)}")


def _program() -> str:
    """How the user calls us: `smelt` where the shell finds it, else as this process was called."""
    called = Path(sys.argv[0])
    if called.name != "smelt":
        return f"{_short(Path(sys.executable))} -m pipelines"
    found = shutil.which("smelt")
    if found is not None and Path(found).resolve() == called.resolve():
        return "smelt"
    return shlex.quote(_short(called.absolute()))


def _short(path: Path) -> str:
    """Relative to the working folder if it is inside."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _quoted(statement: str) -> str:
    """For a shell: in double quotes, because the statements themselves hold single ones."""
    return '"' + statement.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'
