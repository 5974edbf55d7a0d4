"""A rebuild or a maintenance in a process with a kill at a named point (`tests.silver.killed`).

Started as ``python -m tests.pipelines.killed_upkeep PIPELINE_FILE rebuild|maintain POINT``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from deltasmelt.pipelines.commands.maintain import run_maintain
from deltasmelt.pipelines.commands.rebuild import run_rebuild
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.output import Output
from tests.silver.killed import ending, kill


def main(file: str, command: str, point: str) -> None:
    pipeline = load_pipeline(Path(file))
    with ending(point, kill):
        if command == "rebuild":
            run_rebuild(pipeline, "silver", None, Output())
        else:
            run_maintain(pipeline, Output())
    sys.exit("the point was not reached")


if __name__ == "__main__":
    main(*sys.argv[1:])
