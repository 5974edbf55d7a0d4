"""Command lines of job definitions, parsed by the command's own parser; the Compose file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer.main
from ruamel.yaml import YAML

from deltasmelt.pipelines.cli import app
from deltasmelt.pipelines.monitor import probe
from deltasmelt.pipelines.private import conf_folder

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

PROBE = ["python", "-P", "-m", probe.__name__]
"""First words of a health check."""


def parsed(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Parse the words after `smelt` into command and parameters; raise if they do not parse."""
    group: Any = typer.main.get_command(app)
    command, *arguments = words
    context = group.commands[command].make_context(command, list(arguments))
    assert not context.args
    return command, context.params


def probed(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words of a health check; raise if they do not parse."""
    assert list(words[: len(PROBE)]) == PROBE
    return probe.parser().parse_args(list(words[len(PROBE) :]))


def compose() -> dict[str, Any]:
    """Return the Compose file, with its merged keys."""
    file: dict[str, Any] = YAML(typ="safe").load((conf_folder() / "docker" / "compose.yml").read_text())
    return file
