"""deltasmelt from Python: a notebook, a job, a test.

>>> import deltasmelt                                                             # doctest: +SKIP
>>> with deltasmelt.open("pipeline.yml") as lake:                                 # doctest: +SKIP
...     lake.sql("SELECT status, count(*) FROM silver.orders GROUP BY status").show()
...     now = lake.at()                         # one moment, for any number of tables
...     orders, customers = now.table("silver.orders"), now.table("gold.customer")

The functions return values: DataFrames, findings, dataclasses. They print nothing, and no call ends the
process. An error is a `SmeltError` with a code, a place and a remedy, as on the command line. Errors found by
Spark at the execution of a DataFrame are Spark's own.

The import takes some milliseconds: Spark and Delta are loaded at their first use.
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
        file: the pipeline file; relative paths in the file begin at its folder.

    Raises:
        ConfigurationError: the file is missing or wrong; the message names file and line.
        DefiniteError: another version of deltasmelt or another pipeline wrote the lake.
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
