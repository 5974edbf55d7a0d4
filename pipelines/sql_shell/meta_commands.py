"""The meta-commands of the shell, which begin with a backslash. Pure.

The names are psql's for commands known to psql. A final semicolon is allowed and has no meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from deltasmelt.bronze.errors import ConfigurationError

Name: TypeAlias = Literal["d", "cut", "fresh", "timing", "watch", "output", "x", "?", "q"]

HELP: Final = (
    ("SQL;", "runs a statement; it may have several lines"),
    (r"\d", "lists the tables at the cut: layer, name, columns, rows"),
    (r"\d NAME", r"shows a table's columns and types; \d silver.* lists"),
    (r"\cut", "shows which moment (cut) statements read"),
    (r"\cut LSN|TIME", "shows the newest moment at or before an LSN or a time"),
    (r"\cut newest", "shows the newest moment"),
    (r"\fresh [on|off]", "reads silver at the log's head, ahead of the next cycle, for each statement"),
    (r"\watch [S] [N]", "repeats the last statement at the newest moment, every S seconds"),
    (r"\o FORMAT", r"prints results as table, json or csv; \output is the same"),
    (r"\x [on|off|auto]", "one value per line; auto: if a row is wider than the screen"),
    (r"\timing [on|off]", "shows how long statements take"),
    (r"\?", "shows this help"),
    (r"\q", "ends the shell, like Ctrl-D"),
)
"""The meta-commands with their effects."""

COMPLETED: Final[dict[str, tuple[str, ...]]] = {
    "\\d": (), "\\cut": ("newest",), "\\fresh": ("on", "off"), "\\watch": (), "\\o": ("table", "json", "csv"),
    "\\output": ("table", "json", "csv"), "\\x": ("on", "off", "auto"), "\\timing": ("on", "off"),
    "\\?": (), "\\q": (),
}  # fmt: skip
"""Completions of Tab: the commands, and their possible arguments."""

_NAMES: Final[dict[str, Name]] = {
    "d": "d", "dt": "d", "cut": "cut", "fresh": "fresh", "timing": "timing", "watch": "watch", "o": "output",
    "output": "output", "x": "x", "?": "?", "h": "?", "help": "?", "q": "q", "quit": "q", "exit": "q",
}  # fmt: skip
_WORDS: Final[dict[str, Name]] = {"quit": "q", "exit": "q", "help": "?"}
"""Words without a backslash for ending or explaining other shells."""


@dataclass(frozen=True, slots=True)
class MetaCommand:
    """A meta-command; `argument` is the rest of the line, or empty."""

    name: Name
    argument: str = ""


def parse_meta(line: str) -> MetaCommand:
    """Parse a meta-command, backslash first; raise a ConfigurationError for an unknown name."""
    word, _, argument = line[1:].strip().partition(" ")
    word, argument = word.rstrip(";"), argument.strip().rstrip(";").rstrip()
    name = _NAMES.get(word)
    if name is None:
        raise ConfigurationError(
            f"no command \\{word} exists", code="sql-meta", remedy=r"\? lists the commands"
        )
    return MetaCommand(name, argument)


def plain_word(text: str) -> MetaCommand | None:
    """Return the meaning of a word from other shells (``quit``, ``exit``, ``help``); None for other text."""
    name = _WORDS.get(text.strip().rstrip(";").rstrip().lower())
    return None if name is None else MetaCommand(name)


def switched(argument: str, now: bool, command: str) -> bool:  # noqa: FBT001 - the state, not a switch
    """Return the new state of a switch: as in the argument, or the opposite."""
    if argument and argument not in {"on", "off"}:
        raise unfit(command, argument, "on or off")
    return argument == "on" if argument else not now


def watch_arguments(argument: str) -> tuple[float, int | None]:
    r"""Return the seconds between two runs of ``\watch``, and the number of runs; None: until Ctrl-C."""
    words = argument.split()
    try:
        seconds = float(words[0]) if words else 2.0
        times = int(words[1]) if len(words) > 1 else None
    except ValueError:
        raise unfit("watch", argument, "seconds, then how many times, e.g. 5 or 0.5 10") from None
    if len(words) > 2 or not 0 < seconds <= 86_400 or (times is not None and times < 1):
        raise unfit("watch", argument, "seconds (up to a day), then how many times, e.g. 5 or 0.5 10")
    return seconds, times


def unfit(command: str, argument: str, expected: str) -> ConfigurationError:
    """Return the error about an argument unfit for a meta-command."""
    return ConfigurationError(
        f"\\{command} does not accept {argument!r}", code="sql-meta", remedy=f"use {expected}"
    )
