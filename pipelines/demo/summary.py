"""The demo's summary: followed changes, silver compared with the source, quality report, next steps.

Every figure comes from the lake, as any user would read the lake. `smelt verify` makes the comparison.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.figures import seconds_text
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.commands.quality import show_quality
from deltasmelt.pipelines.quality.run import run_quality

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import OpenError
    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.pipelines.demo.story import Followed
    from deltasmelt.pipelines.proof.against_source import Proof
    from deltasmelt.pipelines.quality.expectations import QualityResult
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output

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
    ("whether the documents equal a full rebuild", "verify {file} --document '*'"),
)


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures at the demo's end."""

    # the shop's number of commits
    transactions: int
    # bronze's number of rows, including the first snapshot
    changes: int
    # changes with the seconds until each layer
    followed: Sequence[Followed]
    # the order's row in each layer, as JSON
    order: Mapping[Layer, str]
    # each table's comparison with PostgreSQL
    proof: Proof
    quality: QualityResult
    # errors of stopped tables and documents
    errors: Sequence[OpenError] = ()

    @property
    def equal(self) -> bool:
        """True if silver equals the source, every followed change was found, and nothing stopped."""
        proven = self.proof.holds and all(change.arrived for change in self.followed)
        return proven and bool(self.proof.compared) and not self.errors


def summarize(
    spark: SparkSession,
    pipeline: Pipeline,
    proof: Proof,
    *,
    transactions: int,
    changes: int,
    followed: Sequence[Followed],
    order: Mapping[Layer, str],
    report: Callable[[str], None],
) -> Summary:
    """Run the quality checks, and return the contents of the summary."""
    report("checking the data's quality")
    quality = run_quality(spark, pipeline, report=pipeline.folder / "quality.html", progress=report)
    errors = ControlTables(pipeline.lake_address()).open_errors()
    return Summary(transactions, changes, followed, order, proof, quality, errors)


def print_summary(summary: Summary, pipeline: Pipeline, output: Output, *, seconds: float) -> None:
    """Print the summary, with the seconds that the demo took."""
    _print_order(summary, output)
    output.line()
    rows = [
        (
            comparison.table,
            comparison.source_rows,
            comparison.silver_rows,
            "equal" if comparison.equal else "DIFFERENT",
        )
        for comparison in summary.proof.compared
    ]
    columns = ("table", "rows in PostgreSQL", "rows in silver", "content")
    output.table(columns, rows, right=columns[1:3])
    for unproven in summary.proof.unproven:
        output.line(f"silver.{unproven.name} was not compared: {unproven.reason}")
    for error in summary.errors:
        output.line(f"{error.scope} {error.name}: {error.message}")
    output.line()
    show_quality(summary.quality, output)
    output.line()
    output.line(
        f"{summary.transactions:,} transactions of a live shop were replicated through every layer in "
        f"{seconds_text(seconds)}:"
    )
    output.line(f"{summary.changes:,} changed rows, including the first snapshot.")
    output.line(f"The lake is in {pipeline.lake_address().path}")
    output.line("PostgreSQL has stopped; the lake does not need it. Try next:", style="bold")
    file = shlex.quote(_short(pipeline.path))
    for title, statement in _STATEMENTS:
        output.line()
        output.line(f"# {title}", style="dim")
        output.line(f"{_program()} sql {file} {_quoted(statement)}")
    for title, words in _COMMANDS:
        output.line()
        output.line(f"# {title}", style="dim")
        output.line(f"{_program()} {words.format(file=file)}")


def _print_order(summary: Summary, output: Output) -> None:
    if not summary.followed:
        return
    order = summary.followed[0]
    tables: dict[Layer, str] = {
        "bronze": "bronze.changes",
        "silver": "silver.orders",
        "gold": "gold.customer",
    }
    output.line()
    output.line(f"{order.title}:", style="bold")
    for layer, table in tables.items():
        if layer in summary.order:
            output.line()
            output.line(f"{table}, {seconds_text(order.seconds[layer])} after the commit", style="dim")
            output.document(summary.order[layer])


def _program() -> str:
    """Return the user's name for the command: `smelt` if on the shell's path, else this process's call."""
    program = Path(sys.argv[0])
    if program.name != "smelt":
        return f"{_short(Path(sys.executable))} -m deltasmelt"
    installed = shutil.which("smelt")
    if installed is not None and Path(installed).resolve() == program.resolve():
        return "smelt"
    return shlex.quote(_short(program.absolute()))


def _short(path: Path) -> str:
    """Return the path relative to the working folder, if the path is inside."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _quoted(statement: str) -> str:
    """Quote a text for a shell: in double quotes, because the statements contain single quotes."""
    return '"' + statement.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'
