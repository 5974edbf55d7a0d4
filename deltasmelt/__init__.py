"""deltasmelt from Python: a notebook, a job, a test.

>>> import deltasmelt                                                             # doctest: +SKIP
>>> with deltasmelt.open("pipeline.yml") as lake:                                 # doctest: +SKIP
...     lake.sql("SELECT status, count(*) FROM silver.orders GROUP BY status").show()
...     now = lake.at()                         # one moment, for any number of tables
...     orders, customers = now.table("silver.orders"), now.table("gold.customer")
>>> deltasmelt.run("pipeline.yml", until_caught_up=True)                          # doctest: +SKIP

The functions return values: DataFrames, findings, dataclasses. They print nothing, and no call ends the
process. An error is a `SmeltError` with a code, a place and a remedy, as on the command line. Errors found by
Spark at the execution of a DataFrame are Spark's own.

The import takes some milliseconds: Spark and Delta are loaded at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, SmeltError, TransientError
    from deltasmelt.lake import Moment, OpenLake
    from deltasmelt.running import Progress, RunningPipeline

__all__ = [
    "ConfigurationError",
    "DefiniteError",
    "Moment",
    "OpenLake",
    "Progress",
    "RunningPipeline",
    "SmeltError",
    "TransientError",
    "init",
    "open",
    "run",
    "start",
]

_HOMES: Final = {
    "Moment": "deltasmelt.lake",
    "OpenLake": "deltasmelt.lake",
    "Progress": "deltasmelt.running",
    "RunningPipeline": "deltasmelt.running",
    **dict.fromkeys(
        ("ConfigurationError", "DefiniteError", "SmeltError", "TransientError"), "deltasmelt.bronze.errors"
    ),
}


def open(file: str | Path) -> OpenLake:  # noqa: A001 - as `tarfile.open` and `gzip.open`: never imported bare
    """Open the lake of a pipeline file.

    Args:
        file: the pipeline file; relative paths in the file begin at its folder.

    Raises:
        ConfigurationError: the file is missing or wrong; the message names file and line.
        DefiniteError: another version of deltasmelt or another pipeline wrote the lake.
    """
    from deltasmelt.lake import open_lake  # noqa: PLC0415 - loads Delta

    return open_lake(file)


def init(dsn: str | None = None, file: str | Path = "pipeline.yml", schemas: Sequence[str] = ()) -> Path:
    """Write a pipeline file and drafts of documents for a database; return the file's path.

    Args:
        dsn: DSN of the source; None for libpq's environment. The written file has no password.
        file: the pipeline file to write; existing files are refused.
        schemas: schemas to read; empty for all.

    Raises:
        SmeltError: the source cannot be read or has no tables, or a file exists already.
    """
    from pathlib import Path  # noqa: PLC0415 - the import of the package stays quick

    from deltasmelt.pipelines.init.command import run_init  # noqa: PLC0415
    from deltasmelt.pipelines.terminal.output import SilentOutput  # noqa: PLC0415

    path = Path(file)
    run_init(SilentOutput(), dsn=dsn, out=path, schemas=schemas)
    return path


def run(
    file: str | Path, *, until_caught_up: bool = False, progress: Callable[[Progress], None] | None = None
) -> None:
    """Run a pipeline until it is caught up, or until Ctrl-C.

    An interruption ends the run in order, before the caller gets `KeyboardInterrupt`.

    Args:
        file: the pipeline file.
        until_caught_up: end when all layers have reached the server's present WAL position.
        progress: called with each step, from threads of the run.

    Raises:
        ConfigurationError: a file is missing or wrong.
        SmeltError: the reason for the end of the run; ``tables-stopped``: caught up except for tables or
            documents that an error has stopped.
    """
    with start(file, until_caught_up=until_caught_up, progress=progress) as running:
        running.wait()


def start(
    file: str | Path, *, until_caught_up: bool = False, progress: Callable[[Progress], None] | None = None
) -> RunningPipeline:
    """Start a pipeline beside the program; return the object that watches and stops it.

    Args:
        file: the pipeline file.
        until_caught_up: as for `run`.
        progress: as for `run`.

    Raises:
        ConfigurationError: a file is missing or wrong.
        DefiniteError: another version of deltasmelt or another pipeline wrote the lake.
    """
    from deltasmelt.running import start  # noqa: PLC0415 - loads Delta

    return start(file, until_caught_up=until_caught_up, progress=progress)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
