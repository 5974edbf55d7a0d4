"""Commands after a backslash."""

from __future__ import annotations

import pytest

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.pipelines.sql_shell.meta_commands import (
    COMPLETED,
    HELP,
    MetaCommand,
    parse_meta,
    plain_word,
    switched,
    watch_arguments,
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (r"\d", MetaCommand("d")),
        (r"\dt;", MetaCommand("d")),
        (r"\d  silver.orders ;", MetaCommand("d", "silver.orders")),
        (r"\cut 2026-01-31 12:00", MetaCommand("cut", "2026-01-31 12:00")),
        (r"\o csv", MetaCommand("output", "csv")),
        (r"\output json;", MetaCommand("output", "json")),
        (r"\?", MetaCommand("?")),
        (r"\quit", MetaCommand("q")),
    ],
)
def test_line_consists_of_command_and_argument(line: str, expected: MetaCommand) -> None:
    assert parse_meta(line) == expected


def test_unknown_command_is_rejected_with_hint_to_help() -> None:
    with pytest.raises(ConfigurationError, match=r"no command \\foo exists\nremedy: \\\? lists"):
        parse_meta(r"\foo bar")


def test_every_command_of_help_and_completion_exists() -> None:
    for line in [*COMPLETED, *(command for command, _ in HELP if command.startswith("\\"))]:
        parse_meta(line)


@pytest.mark.parametrize("text", ["quit", "EXIT;", " exit ", "help"])
def test_exit_and_help_words_of_other_shells_work(text: str) -> None:
    assert plain_word(text) is not None


def test_words_within_a_statement_are_left_to_it() -> None:
    assert plain_word("SELECT quit") is None


def test_a_switch_is_turned_or_set() -> None:
    assert switched("", now=False, command="timing")
    assert not switched("", now=True, command="timing")
    assert switched("on", now=True, command="timing")
    with pytest.raises(ConfigurationError, match=r"\\timing does not accept 'maybe'"):
        switched("maybe", now=True, command="timing")


def test_watch_takes_seconds_and_a_number_of_times() -> None:
    assert watch_arguments("") == (2.0, None)
    assert watch_arguments("0.5") == (0.5, None)
    assert watch_arguments("5 3") == (5.0, 3)


@pytest.mark.parametrize("argument", ["soon", "0", "-1", "nan", "inf", "1 0", "1 2 3", "1 x"])
def test_watch_refuses_other_numbers(argument: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\\watch does not accept"):
        watch_arguments(argument)
