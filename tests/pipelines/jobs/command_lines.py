"""Command lines of job definitions, read by the parser of the command itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer.main

from deltasmelt.pipelines.cli import app
from deltasmelt.pipelines.monitor import probe

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

PROBE = ["python", "-P", "-m", probe.__name__]
"""How a health check begins."""


def parsed(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Command and parameters of what stands behind `smelt`; what does not parse raises."""
    group: Any = typer.main.get_command(app)
    command, *rest = words
    context = group.commands[command].make_context(command, list(rest))
    assert not context.args
    return command, context.params


def probed(words: Sequence[str]) -> argparse.Namespace:
    """What a health check asks for; what does not parse raises."""
    assert list(words[: len(PROBE)]) == PROBE
    return probe.parser().parse_args(list(words[len(PROBE) :]))
