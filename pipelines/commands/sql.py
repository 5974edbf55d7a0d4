"""`smelt sql`: run statements over the lake at one cut, from arguments, a file, a pipe or a terminal."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from deltasmelt.bronze.errors import ConfigurationError, SmeltError
from deltasmelt.pipelines.commands.context import require_lake, spark_for
from deltasmelt.pipelines.moments import parse_as_of
from deltasmelt.pipelines.spark.lake_sql import cut_of
from deltasmelt.pipelines.spark.sql_writes import refuse_writing
from deltasmelt.pipelines.sql_shell.exports import Export, format_of
from deltasmelt.pipelines.sql_shell.session import Display, SqlSession, cut_text
from deltasmelt.pipelines.sql_shell.splitting import split
from deltasmelt.pipelines.sql_shell.warm_spark import InTurn, WithoutSpark
from deltasmelt.pipelines.terminal.arguments import RowFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.sql_shell.splitting import Statement
    from deltasmelt.pipelines.terminal.output import Output

_STDIN = "-"


@dataclass(frozen=True, slots=True)
class SqlOptions:
    """The arguments of `smelt sql`.

    Attributes:
        statement: statement from the command line.
        file: file with statements; ``-`` is standard input.
        as_of: an LSN or a time; None: now.
        limit: largest number of rows in a printed table.
        form: format of rows; None: from the name in `to`, or a table.
        to: path of the file for the rows.
        fresh: read silver at the log's head.
    """

    statement: str | None = None
    file: str | None = None
    as_of: str | None = None
    limit: int = 1000
    form: RowFormat | None = None
    to: str | None = None
    fresh: bool = False


def run_sql(pipeline: Pipeline, options: SqlOptions, output: Output) -> None:
    """Run the statements, or a shell on a bare terminal.

    Raises:
        SmeltError: the cut does not exist, a statement is refused, or the rows cannot be written.
    """
    if options.fresh and options.as_of is not None:
        raise ConfigurationError(
            "--fresh reads the log's head, and --as-of an earlier state",
            code="as-of",
            where="--fresh",
            remedy="use one of the two options",
        )
    at = None if options.as_of is None else parse_as_of(options.as_of)
    display, statements = display_of(options), _statements(options)
    require_lake(pipeline)
    if statements is None:
        from deltasmelt.pipelines.sql_shell.shell import run_shell  # noqa: PLC0415 - a script needs no terminal

        display.environment = os.environ
        run_shell(pipeline, output, cut_of(pipeline, at), display)
        return
    if not statements:
        output.report(f"{_name(options)}: no statement")
        return
    _run_each(options, statements, _refuse_writing)  # before Spark starts
    text = "\n".join(statement.text for statement in statements if not statement.is_meta)
    cut = cut_of(pipeline, at, statement=text or None)
    if not text:  # meta-commands alone
        _run_all(SqlSession(pipeline, output, WithoutSpark(), cut, display), options, statements)
        return
    with spark_for(pipeline, output) as spark:
        session = SqlSession(
            pipeline, output, InTurn(spark, partial(_waiting, display, output)), cut, display
        )
        try:
            _run_all(session, options, statements)
        finally:
            session.close()
        if display.form is not RowFormat.JSON:
            output.report(f"as of {cut_text(session.cut_read or session.cut)}")


def _waiting(display: Display, output: Output) -> AbstractContextManager[None]:
    """Show a running statement on a terminal, unless the statement's rows are printed as they arrive."""
    # Chosen for each statement: the format can change in between (`\o csv`).
    return nullcontext() if display.streams else output.waiting("running the statement")


def _run_all(session: SqlSession, options: SqlOptions, statements: Sequence[Statement]) -> None:
    r"""Run statements up to the first failure, or to a ``\q``."""
    with suppress(EOFError):
        _run_each(options, statements, session.run)


def _run_each(
    options: SqlOptions, statements: Sequence[Statement], work: Callable[[Statement], None]
) -> None:
    """Apply a function to each statement; an error names the statement's place."""
    for number, statement in enumerate(statements, start=1):
        try:
            work(statement)
        except SmeltError as error:
            if len(statements) > 1 or options.statement is None:
                error.where = f"{_name(options)}:{statement.line} (statement {number})"
            raise


def _refuse_writing(statement: Statement) -> None:
    if not statement.is_meta:
        refuse_writing(statement.text)


def display_of(options: SqlOptions) -> Display:
    """Return the display of the rows that the arguments request.

    Raises:
        ConfigurationError: Parquet without a file.
    """
    form = options.form or (format_of(options.to) if options.to else None) or RowFormat.TABLE
    if options.to is None and form is RowFormat.PARQUET:
        raise ConfigurationError(
            "Parquet cannot be printed",
            code="sql-target",
            where="--output parquet",
            remedy="add --to FILE.parquet, or --to FOLDER with a file of each Spark task",
        )
    export = None if options.to is None else Export(options.to, form)
    return Display(limit=options.limit, form=form, export=export, fresh=options.fresh)


def _statements(options: SqlOptions) -> Sequence[Statement] | None:
    """Return the statements; None for a person at a terminal.

    Raises:
        ConfigurationError: the file does not exist, or has an open quote or comment.
    """
    if options.statement is not None:
        text = options.statement
    elif options.file is not None and options.file != _STDIN:
        text = _read(options.file)
    elif options.file is None and sys.stdin is not None and sys.stdin.isatty():
        if options.to is not None:
            raise ConfigurationError(
                "a file can contain the rows of only one statement",
                code="sql-target",
                where="--to",
                remedy="add the statement to the command",
            )
        return None
    else:
        text = "" if sys.stdin is None else sys.stdin.read()
    script = split(text)
    if script.unclosed is not None:
        opened, line = script.unclosed
        raise ConfigurationError(
            f"a {opened} is not closed", code="sql", where=f"{_name(options)}:{line}", remedy="close it"
        )
    return script.all


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigurationError(
            "the file of statements does not exist", code="file-missing", where=file, remedy="correct --file"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"the file is not UTF-8 at byte {error.start}",
            code="sql",
            where=file,
            remedy="save the file as UTF-8",
        ) from None


def _name(options: SqlOptions) -> str:
    """Return the name of the statements' origin for messages."""
    if options.statement is not None:
        return "SQL"
    return "standard input" if options.file in {None, _STDIN} else str(options.file)
