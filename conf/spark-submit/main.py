"""What spark-submit runs: the command `smelt`, in the driver that was submitted.

Python puts the folder of its script in front of its path. Beside a copy of this file, or in the working
folder of a container, there may be modules with the names of others, so that folder is taken out.
"""

# ruff: noqa: INP001 - a script that spark-submit is given, no module
import sys
from pathlib import Path

if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    del sys.path[0]

from deltasmelt.__main__ import main

main()
