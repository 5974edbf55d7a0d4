"""Errors become one message and an exit code here, and nowhere else.

=====  ==================================================================================
code   meaning
=====  ==================================================================================
0      what the command promises holds
1      stopped: an error with its remedy, or a comparison that did not hold
2      the command line could not be understood
3      caught up, but some tables or documents have stopped by an error
130    interrupted (Ctrl-C); 143 ended by SIGTERM; 129 by SIGHUP: the terminal was closed
=====  ==================================================================================

An unexpected error is shown in one line, with its traceback in the log file; ``--debug`` shows the traceback
on the terminal. Nothing here prints a password: messages of our errors never hold one, and the text of
foreign errors goes through `without_secrets`.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Final

from rich.text import Text

from deltasmelt.bronze.errors import SmeltError, TransientError
from deltasmelt.bronze.lake.place import without_keys
from deltasmelt.pipelines.terminal import output
from deltasmelt.pipelines.terminal.error_pages import has_page
from deltasmelt.pipelines.terminal.interrupts import Terminated, interruption_behind
from deltasmelt.pipelines.terminal.jvm_errors import SparkFailure
from deltasmelt.pipelines.terminal.output import ERROR, QUIET, TITLE, messages
from deltasmelt.pipelines.terminal.visible import plain, visible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STOPPED: Final = 1
USAGE: Final = 2
TABLES_STOPPED: Final = 3
INTERRUPTED: Final = 130
TERMINATED: Final = 143
HUNG_UP: Final = 129

_OF_THE_SYSTEM: Final = {
    errno.EACCES: "grant this account access to it, or choose another path",
    errno.EDQUOT: "free some space, or raise the quota; then run the command again",
    errno.EMFILE: "let the process open more files: ulimit -n 65536",
    errno.ENOSPC: "free some space; then run the command again",
    errno.ENOTDIR: "a file is there instead of a folder: choose another path",
    errno.EPERM: "grant this account access to it, or choose another path",
    errno.EROFS: "the file system is read-only: choose another path",
}
_MARKED: Final = {"error": ERROR, "remedy": TITLE, "more": QUIET}
"""Words at the beginning of a line, and their styles on a terminal."""

_LOGGER = logging.getLogger("deltasmelt")
_WORD: Final = re.compile(r"\S+")
_LOGIN: Final = re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^:/@]*:", re.IGNORECASE)
_PASSWORD: Final = re.compile(
    r"""(password\s*=\s*|token=)('(?:\\.|[^'\\])*'|(?:\\.|[^\s\\])+)""", re.IGNORECASE
)


class Failure(Exception):  # noqa: N818 - no error, but the end of a command with this exit code
    """A command's promise does not hold; the message is printed as it is.

    Attributes:
        exit_code: see the module's table.
    """

    def __init__(self, message: str, *, exit_code: int = STOPPED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def tables_stopped(names: Sequence[str], *, waiting: Sequence[str] = ()) -> Failure:
    """The end of a run that caught up while these tables or documents have stopped.

    Args:
        names: those that an error has stopped.
        waiting: those that still lack something: changes in bronze, or their first snapshot.
    """
    reasons = [f"stopped by errors: {', '.join(names)}"] if names else []
    reasons += (
        [f"waiting for data that bronze or silver still lacks: {', '.join(waiting)}"] if waiting else []
    )
    remedy = "`smelt status` shows each error with its remedy"
    if waiting:
        remedy += (
            "; a table that waits for a snapshot gets it from the reader: smelt bronze FILE --until-caught-up"
        )
    return Failure(f"caught up, but {'; '.join(reasons)}\nremedy: {remedy}", exit_code=TABLES_STOPPED)


def without_secrets(text: str) -> str:
    """The text with passwords and tokens of addresses, and keys of the lake's store, blanked out.

    Colours of a library go too: they could part a password. In time linear in its length.
    """
    return without_keys(_without_passwords(plain(text)))


def _without_passwords(text: str) -> str:
    return _PASSWORD.sub(r"\1***", _WORD.sub(lambda word: _without_login(word[0]), text))


def _without_login(word: str) -> str:
    """Without what stands between ``scheme://user:`` and the last ``@``: a password may hold others."""
    before, at, after = word.rpartition("@")
    login = _LOGIN.search(before) if at else None
    if login is None or login.end() == len(before):
        return word
    return f"{before[: login.end()]}***@{after}"


def was_interrupted(error: BaseException) -> bool:
    """Whether it is an interruption, or came from one: what was under way failed while it was carried out."""
    if isinstance(error, SmeltError | Failure):
        return False
    return interruption_behind(error, (KeyboardInterrupt, Terminated)) is not None


def foreign_text(error: BaseException) -> str:
    """An error that is not ours, in a line: its kind, and the first line of what it says."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return f"{error.filename}: {os.strerror(error.errno)}"
    lines = without_secrets(str(error)).strip().splitlines()
    name = f"Spark: {error.name}" if isinstance(error, SparkFailure) else type(error).__name__
    return f"{name}: {lines[0] if lines else 'no message'}"


def report(error: BaseException, *, debug: bool = False, log: Path | None = None) -> int:
    """Tell the user on standard error; returns the exit code."""
    if not isinstance(error, SmeltError | Failure):
        error = interruption_behind(error, (KeyboardInterrupt, Terminated)) or error
    if isinstance(error, KeyboardInterrupt):
        _say("interrupted")
        return INTERRUPTED
    if isinstance(error, Terminated):
        if error.number == signal.SIGHUP:
            return HUNG_UP  # there is no longer a terminal to print on
        _say("ended by SIGTERM")
        return TERMINATED
    _LOGGER.error("command failed", exc_info=error)
    if debug:
        trace = without_secrets("".join(traceback.format_exception(error)))
        sys.stderr.write(visible(trace).rstrip() + "\n")
    if isinstance(error, Failure):
        _say(str(error))
        return error.exit_code
    if isinstance(error, SmeltError):
        if output.as_json():
            output.say(without_secrets(error.message), level="error", error=error)
        else:
            _say(error_text(error))
        return STOPPED
    _say(_foreign(error))
    _say(f"full traceback: {log}" if log else "run the command with --debug to see the traceback")
    return STOPPED


def error_text(error: SmeltError) -> str:
    """One of our errors as text: where, what and its code, remedy, and how to read the page about it."""
    message, *details = without_secrets(str(error)).splitlines() or [""]
    output = [f"error: {message} [{error.code}]", *details]
    if isinstance(error, TransientError):
        output.append("this error is usually temporary: run the command again")
    if has_page(error.code):
        output.append(f"more: smelt explain-error {error.code}")
    return "\n".join(output)


def _foreign(error: BaseException) -> str:
    """An error that is not ours; some of the file system have a remedy."""
    message = f"error: {foreign_text(error)}"
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        remedy = _OF_THE_SYSTEM.get(error.errno)
        return message if remedy is None else f"{message}\nremedy: {remedy}"
    notes = [] if isinstance(error, SparkFailure) else getattr(error, "__notes__", [])
    return "\n".join([message, *notes])


def _say(text: str) -> None:
    """Print to standard error; on a terminal the words that begin a line are marked by colour."""
    if output.as_json():
        output.say(text, level="error")
        return
    console, text = messages(), visible(text)
    if not console.is_terminal:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
        return
    for line in text.splitlines():
        begin, colon, text_after = line.partition(": ")
        style = _MARKED.get(begin) if colon else None
        console.print(Text.assemble((f"{begin}:", style), f" {text_after}") if style else Text(line))
