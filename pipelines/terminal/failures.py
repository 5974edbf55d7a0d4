"""Turn errors into one message and an exit code, in this module alone.

=====  ==================================================================================
code   meaning
=====  ==================================================================================
0      the command's promise holds
1      stopped: an error with its remedy, or a failed comparison
2      the command line is not valid
3      caught up, but some tables or documents have stopped by an error
130    interrupted (Ctrl-C); 143 ended by SIGTERM; 129 by SIGHUP: the terminal was closed
=====  ==================================================================================

An unexpected error is shown in one line, with its traceback in the log file; ``--debug`` shows the traceback
on the terminal. This module prints no password: messages of deltasmelt's errors never hold a password, and
the text of foreign errors passes through `without_secrets`.
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
from deltasmelt.pipelines.terminal.interrupts import INTERRUPTIONS, Terminated, interruption_behind
from deltasmelt.pipelines.terminal.jvm_errors import SparkFailure
from deltasmelt.pipelines.terminal.output import ERROR, QUIET, TITLE, messages
from deltasmelt.pipelines.terminal.visible import plain, visible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from deltasmelt.bronze.lake.control import OpenError

STOPPED: Final = 1
USAGE: Final = 2
TABLES_STOPPED: Final = 3
INTERRUPTED: Final = 130
TERMINATED: Final = 143
HUNG_UP: Final = 129

_OF_THE_SYSTEM: Final = {
    errno.EACCES: "give this account access to the file or folder, or choose another path",
    errno.EDQUOT: "free some space, or raise the quota; then run the command again",
    errno.EMFILE: "allow the process to open more files: ulimit -n 65536",
    errno.ENOSPC: "free some space; then run the command again",
    errno.ENOTDIR: "the path contains a file where a folder is needed: choose another path",
    errno.EPERM: "give this account access to the file or folder, or choose another path",
    errno.EROFS: "the file system is read-only: choose another path",
}
_SHOWN: Final = 5
"""Number of errors that the end of a run shows."""
_MARKED: Final = {"error": ERROR, "remedy": TITLE, "more": QUIET}
"""Words at the beginning of a line, and their styles on a terminal."""

_LOGGER = logging.getLogger("deltasmelt")
_WORD: Final = re.compile(r"\S+")
_LOGIN: Final = re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^:/@]*:", re.IGNORECASE)
_PASSWORD: Final = re.compile(
    r"""(password\s*=\s*|token=)('(?:\\.|[^'\\])*'|(?:\\.|[^\s\\])+)""", re.IGNORECASE
)


class Failure(Exception):  # noqa: N818 - no error, but the end of a command with this exit code
    """Raised if a command's promise does not hold; the message is printed unchanged."""

    def __init__(self, message: str, *, exit_code: int = STOPPED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def tables_stopped(
    names: Sequence[str], *, waiting: Sequence[str] = (), errors: Sequence[OpenError] = ()
) -> Failure:
    """Return the failure of a run that caught up while these tables or documents have stopped.

    Args:
        names: tables or documents that an error has stopped.
        waiting: tables or documents that still lack changes in bronze, or their first snapshot.
        errors: the open errors of `names`.
    """
    parts = [f"{', '.join(names)} (stopped by errors)"] if names else []
    parts += [f"{', '.join(waiting)} (waiting for data of bronze or silver)"] if waiting else []
    shown = [open_error_text(error) for error in errors[:_SHOWN]]
    remedy = (
        "correct the cause above, then run the command again"
        if shown and len(errors) <= _SHOWN
        else "`smelt status` shows each error with its remedy"
    )
    if waiting:
        remedy += (
            "; the reader snapshots a table that waits for a snapshot: smelt bronze FILE --until-caught-up"
        )
    first = f"caught up except for: {'; '.join(parts)}"
    return Failure("\n".join([first, *shown, f"remedy: {remedy}"]), exit_code=TABLES_STOPPED)


def open_error_text(error: OpenError) -> str:
    """Return an open error of a table or document, with its remedy in a second line."""
    remedy = f"\n  remedy: {error.remedy}" if error.remedy else ""
    return without_secrets(f"{error.name}: {error.message} [{error.code}]{remedy}")


def without_secrets(text: str) -> str:
    """Return the text without passwords and tokens of addresses, and without keys of the lake's store."""
    # A library's colour codes are removed, too: a code could split a password. The time is linear in the
    # length.
    return without_keys(_without_passwords(plain(text)))


def _without_passwords(text: str) -> str:
    return _PASSWORD.sub(r"\1***", _WORD.sub(lambda word: _without_login(word[0]), text))


def _without_login(word: str) -> str:
    """Mask the text between ``scheme://user:`` and the last ``@``: a password may hold further ``@``."""
    before, at, after = word.rpartition("@")
    login = _LOGIN.search(before) if at else None
    if login is None or login.end() == len(before):
        return word
    return f"{before[: login.end()]}***@{after}"


def was_interrupted(error: BaseException) -> bool:
    """Check whether the error is an interruption, or a failure of the work that was interrupted."""
    if isinstance(error, SmeltError | Failure):
        return False
    return interruption_behind(error, INTERRUPTIONS) is not None


def foreign_text(error: BaseException) -> str:
    """Return a foreign error in one line: its class, and the first line of its message."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return f"{error.filename}: {os.strerror(error.errno)}"
    lines = without_secrets(str(error)).strip().splitlines()
    name = f"Spark: {error.name}" if isinstance(error, SparkFailure) else type(error).__name__
    return f"{name}: {lines[0] if lines else 'no message'}"


def report(error: BaseException, *, debug: bool = False, log: Path | None = None) -> int:
    """Report an error to the user on standard error; return the exit code."""
    if not isinstance(error, SmeltError | Failure):
        error = interruption_behind(error, INTERRUPTIONS) or error
    if isinstance(error, KeyboardInterrupt):
        _print("interrupted", after_keys=True)
        return INTERRUPTED
    if isinstance(error, Terminated):
        if error.number == signal.SIGHUP:
            return HUNG_UP  # the terminal no longer exists
        _print("ended by SIGTERM")
        return TERMINATED
    _LOGGER.error("command failed", exc_info=error)
    if debug:
        trace = without_secrets("".join(traceback.format_exception(error)))
        sys.stderr.write(visible(trace).rstrip() + "\n")
    if isinstance(error, Failure):
        _print(str(error))
        return error.exit_code
    if isinstance(error, SmeltError):
        if output.as_json():
            output.report(without_secrets(error.message), level="error", error=error)
        else:
            _print(error_text(error))
        return STOPPED
    _print(_foreign(error))
    _print(f"full traceback: {log}" if log else "run the command with --debug to see the traceback")
    return STOPPED


def error_text(error: SmeltError) -> str:
    """Return an own error as text: place, message, code, remedy, and the command for the error's page."""
    message, *details = without_secrets(str(error)).splitlines() or [""]
    output = [f"error: {message} [{error.code}]", *details]
    if isinstance(error, TransientError):
        output.append("this error is usually temporary: run the command again")
    if has_page(error.code):
        output.append(f"more: smelt explain-error {error.code}")
    return "\n".join(output)


def _foreign(error: BaseException) -> str:
    """Return the text of a foreign error; some errors of the file system have a remedy."""
    message = f"error: {foreign_text(error)}"
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        remedy = _OF_THE_SYSTEM.get(error.errno)
        return message if remedy is None else f"{message}\nremedy: {remedy}"
    notes = [] if isinstance(error, SparkFailure) else getattr(error, "__notes__", [])
    return "\n".join([message, *notes])


def _print(text: str, *, after_keys: bool = False) -> None:
    """Print to standard error; on a terminal, colour the words that begin a line.

    With `after_keys` the line replaces a begun line, such as a question, and the keys that the terminal shows
    there, `^C`.
    """
    if output.as_json():
        output.report(text, level="error")
        return
    console, text = messages(), visible(text)
    if not console.is_terminal:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
        return
    if after_keys:
        sys.stderr.write("\n" if console.is_dumb_terminal else "\r\x1b[K")
    for line in text.splitlines():
        begin, colon, text_after = line.partition(": ")
        style = _MARKED.get(begin) if colon else None
        console.print(Text.assemble((f"{begin}:", style), f" {text_after}") if style else Text(line))
