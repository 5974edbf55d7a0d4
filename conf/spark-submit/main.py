"""What spark-submit runs: the command `smelt`, in the driver that was submitted."""

# ruff: noqa: INP001 - a script that spark-submit is given, no module
from pipelines.cli import main

main()
