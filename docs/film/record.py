"""Run a command on a new terminal and record the command's output, with times.

`make film` records `smelt demo` in a new folder: `record.py CAST FOLDER COMMAND…`. A command that fails
leaves the earlier recording. The recording is an asciicast, version 2
(https://docs.asciinema.org/manual/asciicast/v2/): a header line, then a line `[seconds, "o", text]` for each
output. A terminal with a moving line prints megabytes. So the recording only holds a sample of the terminal
every `EVERY` seconds: all changed lines, whole.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import struct
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyte
from draw import COLUMNS, TALL, runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROWS: Final = 34
EVERY: Final = 0.5

Event = tuple[float, str]
"""Seconds since the start, and output."""


def run(command: list[str], folder: str) -> Iterator[Event]:
    """Yield the output of a command on a terminal of `COLUMNS` by `ROWS`, and show the output.

    Raises:
        SystemExit: the command failed.
    """
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.environ.pop("NO_COLOR", None)
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", LC_ALL="C.UTF-8")
        os.chdir(folder)
        os.execvp(command[0], command)  # noqa: S606 - the command of the person who records
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    begin = time.monotonic()
    while True:
        try:
            output = decode(os.read(terminal, 65536))
        except OSError:  # Linux reports the end of a terminal's other side as an error
            break
        if not output:
            break
        sys.stdout.write(output)
        sys.stdout.flush()
        yield time.monotonic() - begin, output
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        raise SystemExit(f"error: nothing was recorded: {' '.join(command)} ended with exit code {code}")


def thinned(recorded: Iterable[Event]) -> Iterator[Event]:
    """Yield the changed lines of the terminal every `EVERY` seconds, and at the end."""
    screen = pyte.Screen(COLUMNS, TALL)
    stream = pyte.Stream(screen)
    known: list[str] = [""] * TALL
    sampled, last = 0.0, 0.0
    for second, text in recorded:
        if second >= sampled + EVERY and (change := _changed(screen, known)):
            yield last, change
            sampled = last
        stream.feed(text.replace("\x1b[2m", "\x1b[38;2;138;146;160m"))  # pyte knows no dim text
        last = second
    yield last, _changed(screen, known)


def _changed(screen: pyte.Screen, known: list[str]) -> str:
    found = []
    for row in range(TALL):
        line = "".join(
            f"\x1b[{row + 1};{column + 1}H\x1b[0;{'1;' if bold else ''}38;2;{_numbers(colour)}m{text}"
            for column, text, colour, bold in runs(screen, row)
        )
        if line != known[row]:
            known[row] = line
            found.append(f"\x1b[{row + 1};1H\x1b[0m\x1b[2K{line}")
    return "".join(found)


def _numbers(colour: str) -> str:
    return ";".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))


def write(cast: Path, recorded: Iterable[Event]) -> None:
    """Write a thinned recording to a file, all at once."""
    header = json.dumps({"version": 2, "width": COLUMNS, "height": TALL})
    events = [
        json.dumps([round(second, 2), "o", text], ensure_ascii=False) for second, text in thinned(recorded)
    ]
    cast.write_text("\n".join([header, *events]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), run(sys.argv[3:], sys.argv[2]))
