"""Help texts: every command in a group, with a whole summary and an example, within the terminal's width."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from deltasmelt.pipelines.cli import app
from deltasmelt.pipelines.terminal.help_layout import EXAMPLES, GROUPS

ROOT: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = ROOT.commands


def shown(name: str | None, width: int) -> str:
    """Return the help text of a command, or of the root, on a terminal of this width."""
    with typer.Context(ROOT, info_name="smelt", terminal_width=width) as root:
        if name is None:
            return str(ROOT.get_help(root))
        command = COMMANDS[name]
        with typer.Context(command, info_name=name, parent=root, terminal_width=width) as context:
            return str(command.get_help(context))


def test_each_command_is_in_single_disjoint_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)


def test_root_shows_each_summary_in_single_line() -> None:
    text = shown(None, 80)
    for name, command in COMMANDS.items():
        summary = command.help.split("\n\n")[0].rstrip(".")
        assert f"\n  {name.ljust(13)}  {summary}\n" in text


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_text_has_examples_within_terminal_width(name: str | None) -> None:
    text = shown(name, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "..." not in text.replace("COMMAND [ARGS]...", "").replace("[TABLE]...", "")
    examples = text.partition("\nExamples:\n")[2]
    assert f"  smelt {name or ''}".rstrip() in examples


@pytest.mark.parametrize("name", COMMANDS)
def test_each_example_is_valid_command_line(name: str) -> None:
    import shlex  # noqa: PLC0415

    for line in "\n".join(EXAMPLES[name]).replace("\\\n", " ").splitlines():
        words = shlex.split(line.partition(" > ")[0])
        words = words[words.index("smelt") + 1 :]
        assert words[0] == name
        with typer.Context(ROOT, info_name="smelt") as root:
            context = COMMANDS[name].make_context(name, list(words[1:]), parent=root)
        assert context.args == []
