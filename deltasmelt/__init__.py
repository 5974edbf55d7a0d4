"""deltasmelt from Python: a notebook, a job, a test.

>>> import deltasmelt                                                             # doctest: +SKIP
>>> with deltasmelt.open("pipeline.yml") as lake:                                 # doctest: +SKIP
...     lake.sql("SELECT status, count(*) FROM silver.orders GROUP BY status").show()
...     now = lake.at()                         # one moment, for as many tables as are wanted
...     orders, customers = now.table("silver.orders"), now.table("gold.customer")

It gives values: DataFrames, findings, dataclasses. Nothing is printed, and no call ends the process. What
goes wrong is a `SmeltError` with a code, a place and a remedy, as on the command line. What Spark finds only
when a DataFrame is run is Spark's own error.

This import takes some milliseconds: neither Spark nor Delta is loaded before it is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, SmeltError, TransientError
    from deltasmelt.lake import Moment, OpenLake

__all__ = [
    "ConfigurationError",
    "DefiniteError",
    "Moment",
    "OpenLake",
    "SmeltError",
    "TransientError",
    "open",
]

_HOMES: Final = {
    "Moment": "deltasmelt.lake",
    "OpenLake": "deltasmelt.lake",
    **dict.fromkeys(
        ("ConfigurationError", "DefiniteError", "SmeltError", "TransientError"), "deltasmelt.bronze.errors"
    ),
}


def open(file: str | Path) -> OpenLake:  # noqa: A001 - as `tarfile.open` and `gzip.open`: never imported bare
    """Open the lake of a pipeline file.

    Args:
        file: the pipeline file; paths in it are relative to its folder.

    Raises:
        ConfigurationError: the file is not there, or wrong; file and line are named.
        DefiniteError: the lake was written by another version of deltasmelt, or by another pipeline.
    """
    from deltasmelt.lake import open_lake  # noqa: PLC0415 - loads Delta

    return open_lake(file)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
