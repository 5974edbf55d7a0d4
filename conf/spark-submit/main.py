"""Run the command `smelt` in the driver that spark-submit started.

Python puts the script's folder in front of its path. The folder of a copy of this file, or the working folder
of a container, may hold modules with the names of installed modules. So this script removes the folder from
the path.
"""

# ruff: noqa: INP001 - a script that spark-submit is given, no module
import sys
from pathlib import Path

if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    del sys.path[0]

from deltasmelt.__main__ import main

main()
