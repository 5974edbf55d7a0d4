"""A command within the test's process, on the session of all tests.

A separate process adds a JVM, signals and an exit; other tests cover these for the commands' common code.
Everything else is equal: the arguments, the output on each stream, the exit code.
"""

from __future__ import annotations

import io
import logging
import os
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from typing import TYPE_CHECKING
from unittest.mock import patch

from deltasmelt.pipelines import cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def smelt_here(*arguments: str | Path, folder: Path) -> CompletedProcess[str]:
    """Run the command as `tests.pipelines.test_cli.smelt` does, but within this process."""
    words = [str(word) for word in arguments]
    out, error, code = io.StringIO(), io.StringIO(), 0
    logs = {"SMELT_LOGS": str(folder / "logs")}
    with (
        chdir(folder),
        patch.dict(os.environ, logs),
        _own_logging(),
        redirect_stdout(out),
        redirect_stderr(error),
    ):
        try:
            cli.main(words)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return CompletedProcess(words, code, out.getvalue(), error.getvalue())


@contextmanager
def _own_logging() -> Iterator[None]:
    """Restore the process's logging after a command."""
    root = logging.getLogger()
    names = (None, "deltasmelt")
    handlers, levels = list(root.handlers), {name: logging.getLogger(name).level for name in names}
    with patch.object(cli, "_log", None):
        try:
            yield
        finally:
            for handler in [added for added in root.handlers if added not in handlers]:
                root.removeHandler(handler)
                handler.close()
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
            logging.captureWarnings(capture=False)
