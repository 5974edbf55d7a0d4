"""State the requirements of executors for copying, and the errors of executors that do not meet them.

One executor is checked before anything is locked, but any executor of a cluster may run a task later. So each
task compares versions once more before reading. For a task that could not even start,
`bronze.snapshot.executors.run_fit` reads the reason from the error's text. An unfit executor fails every
attempt. The failure is an error of the table whose ranges the executor got (`without_executors`). No other
table waits: neither small tables, copied by the reader, nor the stream. The reader retries the table later,
as after any table error.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError, TableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.bronze.errors import SmeltError
    from deltasmelt.bronze.identifiers import TableName

CODE: Final = "executors-unfit"
REMEDY: Final = (
    "give the executors the reader's environment (page executors-unfit): set PYSPARK_PYTHON to its Python "
    "if the environment is installed on every machine; or give an archive of the environment by "
    "spark.archives, or by addArtifacts of Spark Connect"
)
_SAME: Final = ("deltasmelt", "psycopg", "pyarrow", "deltalake")
_SETTING: Final = "snapshot.engine"


def unfit(reason: str, remedy: str = REMEDY) -> DefiniteError:
    """Return the error ``executors-unfit``."""
    return DefiniteError(reason, code=CODE, where=_SETTING, remedy=remedy)


def not_shared(uri: str) -> DefiniteError:
    """Return the error ``executors-unfit`` for a lake that the executors' machines do not share."""
    return unfit(
        f"the reader cannot find a file that an executor wrote into {uri}",
        "put a lake in a local folder on a file system that all machines share; otherwise use an object "
        "store, or snapshot.engine: local",
    )


def silent(seconds: float) -> DefiniteError:
    """Return the error ``executors-unfit`` for executors that did not answer."""
    return unfit(
        f"no executor finished a first small task within {seconds:g} s",
        "check in Spark's UI whether the cluster provides executors, and read their logs; or leave "
        "snapshot.engine at local",
    )


def without_executors(table: TableName, error: SmeltError) -> TableError:
    """Return the error of a table that executors cannot copy, with one code for all reasons."""
    place = "" if error.where in {None, _SETTING} else f"{error.where}: "
    return TableError(table, f"{place}{error.message}", code=CODE, remedy=error.remedy)


@cache
def versions() -> Mapping[str, str | None]:
    """Return the versions that must match; None for a package that is a folder on the path."""
    return {package: _version(package) for package in _SAME}


def require_same(host: str, theirs: Mapping[str, str | None], readers: Mapping[str, str | None]) -> None:
    """Check that an executor has the reader's versions. Pure.

    Raises:
        DefiniteError: ``executors-unfit``.
    """
    for package, expected in readers.items():
        if theirs[package] != expected:
            raise unfit(f"the executor {host} has {package} {theirs[package]}, the reader {expected}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
