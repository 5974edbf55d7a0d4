"""Additions to Typer's `--help`: commands in groups, examples, complete summaries.

The order of the groups follows a newcomer's needs. A test requires a group and an example for each command.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Get started": ("demo", "init", "check"),
    "Run": ("run", "bronze", "silver", "gold"),
    "Query and inspect": ("status", "tail", "sql", "explain", "preview"),
    "Verify": ("verify", "quality"),
    "Repair and maintain": ("explain-error", "snapshot", "rebuild", "maintain", "forget", "drop"),
}
"""Headings of ``smelt --help``, each with its commands."""

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "smelt": (
        "smelt demo                          try deltasmelt: needs no database",
        "smelt init --dsn postgresql://smelt@db:5432/shop",
        "smelt check pipeline.yml            what is missing at the source?",
        "smelt run pipeline.yml              replicate until stopped",
        "smelt sql pipeline.yml 'SELECT count(*) FROM silver.orders'",
    ),
    "demo": ("smelt demo", "smelt demo --seconds 20 --folder /tmp/demo"),
    "init": (
        "smelt init --dsn postgresql://smelt@db:5432/shop",
        "PGPASSWORD=… smelt init --dsn 'host=db dbname=shop user=smelt' --schema sales",
        "smelt init --databricks pipeline.yml --cloud azure --catalog main",
    ),
    "check": ("smelt check pipeline.yml", "smelt check pipeline.yml --offline --output json"),
    "run": (
        "smelt run pipeline.yml",
        "smelt run pipeline.yml --until-caught-up",
        "smelt run pipeline.yml --http 127.0.0.1:8080",
    ),
    "bronze": ("smelt bronze pipeline.yml", "smelt bronze pipeline.yml --metrics-port 9187"),
    "silver": ("smelt silver pipeline.yml --until-caught-up",),
    "gold": ("smelt gold pipeline.yml --until-caught-up",),
    "status": ("smelt status pipeline.yml --watch", "smelt status pipeline.yml --output json"),
    "tail": (
        "smelt tail pipeline.yml",
        "smelt tail pipeline.yml public.orders 'public.order_*' --op insert,delete",
        "smelt tail pipeline.yml --from 2026-01-31T12:00Z --output json",
    ),
    "sql": (
        "smelt sql pipeline.yml",
        "smelt sql pipeline.yml 'SELECT count(*) FROM silver.orders'",
        "smelt sql pipeline.yml 'SELECT * FROM silver.orders' \\",
        "    --as-of 2026-01-31T12:00Z",
        "smelt sql pipeline.yml 'SELECT * FROM gold.customer' --to c.parquet",
        "smelt sql pipeline.yml -f report.sql --output csv",
    ),
    "explain": ("smelt explain pipeline.yml customer", "smelt explain pipeline.yml --schema > document.json"),
    "preview": (
        "smelt preview pipeline.yml customer --key 42",
        "smelt preview pipeline.yml order_line --key 42 --key 1",
    ),
    "verify": ("smelt verify pipeline.yml", "smelt verify pipeline.yml --document customer --sample 0.1"),
    "quality": ("smelt quality pipeline.yml --report quality.html",),
    "explain-error": ("smelt explain-error slot-lost", "smelt explain-error"),
    "snapshot": (
        "smelt snapshot pipeline.yml public.orders 'public.order_*'",
        "smelt snapshot pipeline.yml --all --no-wait",
    ),
    "rebuild": ("smelt rebuild pipeline.yml silver orders", "smelt rebuild pipeline.yml gold"),
    "maintain": ("smelt maintain pipeline.yml",),
    "forget": (
        "smelt forget pipeline.yml public.customers --key 42 --dry-run",
        "smelt forget pipeline.yml public.customers --key 42",
        "smelt forget pipeline.yml public.orders --key 7 --key 8",
    ),
    "drop": ("smelt drop pipeline.yml", "smelt drop pipeline.yml --yes"),
}
"""Command lines at the end of each help text; none is wider than 76 columns."""

_REQUIRED: Final = re.compile(r"\{(\w+)\}")
_IN_WORDS: Final = (
    (re.compile(r"<(?:int|float) range>"), "N"),
    (re.compile(r"[\w.-]+<=x<=([\d.]+)"), r"at most \1"),
    (re.compile(r"x>=([\d.]+)"), r"at least \1"),
    (re.compile(r"\b(\d+)\.0(?![\d.])"), r"\1"),
)
"""Typer's notation of types and limits, and plain words for each."""


class CommandGroup(TyperGroup):
    """The root command; its help lists the commands by `GROUPS`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each group of commands with their whole summaries, then how to begin."""
        width = max(map(len, self.commands))
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), _summary(self.get_command(ctx, name))) for name in names]
                )
        _write_examples(formatter, "smelt")
        formatter.write_paragraph()
        formatter.write_text("`smelt COMMAND --help` shows a command's arguments, options and examples.")


class Command(TyperCommand):
    """A command with the arguments in its help as typed by users, and with examples at the end."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line: a required argument is its plain name."""
        return [_REQUIRED.sub(r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def rows(self, ctx: Any) -> Mapping[str, list[tuple[str, str]]]:
        """Return arguments (key ``argument``) and options (``option``), each with notation and help text."""
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            name, text = (_in_words(part) for part in record)
            if parameter.param_type_name == "argument":  # the usage line says which are required
                name, text = name.partition(" <")[0], text.replace("  [required]", "")
            rows[parameter.param_type_name].append((name, text))
        return rows

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options and examples."""
        rows = self.rows(ctx)
        for kind, title in (("argument", "Arguments"), ("option", "Options")):
            if rows[kind]:
                with formatter.section(title):
                    formatter.write_dl(rows[kind])
        _write_examples(formatter, str(self.name))


def _in_words(text: str) -> str:
    for pattern, words in _IN_WORDS:
        text = pattern.sub(words, text)
    return text


def _summary(command: Any) -> str:
    """Return the first paragraph of a command's help, without its full stop."""
    return " ".join(str(command.help).split("\n\n")[0].split()).removesuffix(".")


def _write_examples(formatter: Any, name: str) -> None:
    with formatter.section("Examples"):
        for line in EXAMPLES.get(name, ()):
            formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
