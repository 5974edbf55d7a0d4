r"""The shell: reads statements at a terminal, and runs them on one Spark session.

Spark starts while the user types the first statement; a line below the prompt shows the start. Meta-commands
without Spark (``\d``, ``\cut``) and completion work at once. The shell prints a statement's error and
continues. Ctrl-D or the loss of Spark ends the shell.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, InMemoryHistory
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style
from prompt_toolkit.styles.pygments import style_from_pygments_cls
from pygments.lexers.sql import SqlLexer
from pygments.styles.default import DefaultStyle

from deltasmelt.bronze.errors import SmeltError
from deltasmelt.pipelines.private import own_folder
from deltasmelt.pipelines.sql_shell.catalog import names_of
from deltasmelt.pipelines.sql_shell.completion import LakeCompleter, Names
from deltasmelt.pipelines.sql_shell.meta_commands import plain_word
from deltasmelt.pipelines.sql_shell.session import SqlSession, cut_text
from deltasmelt.pipelines.sql_shell.splitting import split
from deltasmelt.pipelines.sql_shell.warm_spark import CancelledError, SparkLost, WarmSpark
from deltasmelt.pipelines.terminal.failures import report, without_secrets
from deltasmelt.pipelines.terminal.interrupts import terminable
from deltasmelt.pipelines.terminal.logs import log_folder

if TYPE_CHECKING:
    from deltasmelt.bronze.lake.consistent_cut import ConsistentCut
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.sql_shell.session import Display
    from deltasmelt.pipelines.sql_shell.splitting import Statement
    from deltasmelt.pipelines.terminal.output import Output


def history_file(pipeline: str) -> Path | None:
    """Return the file of a pipeline's history, and make a missing file; None without a private folder."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    folder = Path(base) / "deltasmelt" / "sql-history"
    if not own_folder(folder):
        return None
    file = folder / pipeline
    try:
        file.touch(mode=0o600)
    except OSError:  # a full disk, a folder in its place
        return None
    return file


_LOGGER = logging.getLogger("deltasmelt.sql")
_STYLE: Final = Style([*style_from_pygments_cls(DefaultStyle).style_rules, ("bottom-toolbar", "noreverse")])


def run_shell(pipeline: Pipeline, output: Output, cut: ConsistentCut, display: Display) -> None:
    """Read statements and run them until Ctrl-D.

    Raises:
        SmeltError: Spark does not start, or its JVM ended.
    """
    with terminable():
        shell = Shell(pipeline, output, cut, display)
        failure: BaseException | None = None
        try:
            shell.loop()
        except SparkLost as lost:
            failure = lost.__cause__ or lost
        shell.close(lost=failure is not None)
    if failure is not None:
        raise failure


class Shell:
    """One terminal, one session."""

    def __init__(self, pipeline: Pipeline, output: Output, cut: ConsistentCut, display: Display) -> None:
        self._pipeline = pipeline
        self._output = output
        self._starting = ""
        self._functions: tuple[str, ...] = ()
        self._names: tuple[ConsistentCut, Names] | None = None
        self._prompt = self._prompt_session()
        self._output.report(f"pipeline {pipeline.pipeline}, as of {cut_text(cut)}")
        self._output.report(
            r"Statements end with ;   \d lists tables, \? helps, \q ends. Spark is starting …"
        )
        self._spark = WarmSpark(pipeline, self._announce)
        self._session = SqlSession(pipeline, output, self._spark, cut, display)
        threading.Thread(target=self._load_names, name="names", daemon=True).start()

    def loop(self) -> None:
        """Read and run until Ctrl-D; raise a SparkLost at the end of Spark."""
        while True:
            try:
                text = self._prompt.prompt(lambda: f"{self._pipeline.pipeline} {self._session.moment}> ")
            except KeyboardInterrupt:  # the line is cleared
                continue
            except EOFError:
                return
            try:
                self._run(text)
            except EOFError:
                return
            except KeyboardInterrupt:
                self._output.report("interrupted")

    def close(self, *, lost: bool = False) -> None:
        """End Spark; `lost`: Spark has already ended."""
        if not self._spark.up:
            self._output.report("Spark is still starting; it ends as soon as possible …")
        elif not lost:
            try:
                self._session.close()
            finally:
                self._spark.stop()
            return
        self._spark.stop()

    def _run(self, text: str) -> None:
        word = plain_word(text)
        statements = split(text if word is None else rf"\{word.name}").all
        for statement in statements:
            if not self._succeeds(statement):
                return

    def _succeeds(self, statement: Statement) -> bool:
        if not statement.is_meta and not self._spark.up:
            self._output.report("the statement waits for Spark …", style="dim")
        try:
            self._session.run(statement)
        except CancelledError:
            self._output.report("cancelled")
        except SmeltError as error:
            self._output.report(f"error: {without_secrets(_text(error))}", style="red")
        except (SparkLost, EOFError):  # no Spark any more; \q
            raise
        except Exception as error:  # noqa: BLE001 - reported with its traceback in the log; the shell goes on
            report(error, log=log_folder(self._pipeline.pipeline) / "smelt.log")
        else:
            return True
        return False

    # -- the prompt

    def _prompt_session(self) -> PromptSession[str]:
        file = history_file(self._pipeline.pipeline)
        if file is None:
            self._output.report("the history of statements is not stored: no private folder exists for it")
        session: PromptSession[str] = PromptSession(
            lexer=PygmentsLexer(SqlLexer),
            style=_STYLE,
            history=InMemoryHistory() if file is None else FileHistory(file),
            completer=LakeCompleter(self._known_names),
            complete_while_typing=False,
            complete_in_thread=True,
            complete_style=CompleteStyle.MULTI_COLUMN,
            multiline=Condition(lambda: not is_complete(get_app().current_buffer.text)),
            prompt_continuation=lambda width, _number, _wrapped: "-> ".rjust(width),
            bottom_toolbar=lambda: self._starting,
            enable_suspend=True,
            output=create_output(stdout=sys.stdout if sys.stdout.isatty() else sys.stderr),
        )
        return session

    def _announce(self, text: str) -> None:
        """Show a slow activity below the prompt; called from another thread."""
        self._starting = text
        if not text:
            self._prompt.bottom_toolbar = None
        self._prompt.app.invalidate()

    # -- completion

    def _known_names(self) -> Names:
        cut = self._session.cut
        if self._names is None or self._names[0] != cut:
            self._names = cut, Names(names_of(self._session.catalog.tables))
        names = self._names[1]
        names.functions = self._functions
        return names

    def _load_names(self) -> None:
        """Read the names for completion in advance; the functions follow after Spark's start."""
        try:
            self._known_names()
            self._functions = self._spark.functions()
        except Exception:  # tried again at the first Tab; a lake that cannot be read is told by statements
            _LOGGER.exception("names could not be read for completion")


def is_complete(text: str) -> bool:
    """Check whether Enter runs the typed text, rather than beginning another line."""
    statements = split(text)
    return statements.complete or plain_word(text) is not None


def _text(error: SmeltError) -> str:
    """Return a statement's error as text, without the fact that SQL caused the error."""
    place = f"{error.where}: " if error.where and error.where != "SQL" else ""
    return place + error.message + (f"\nremedy: {error.remedy}" if error.remedy else "")
