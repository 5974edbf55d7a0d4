"""What executors need for copying, and what becomes of it where they lack it.

One executor is examined before anything is locked; any of a cluster may be given a task later. So each task
compares versions once more before it reads. Where a task could not even begin, its text tells so
(`bronze.snapshot.executors.run_fit`). An executor that lacks something lacks it at every attempt. That is an
error of the table whose ranges it was given (`without_executors`). No other table waits for it: neither the
small ones, which the reader copies itself, nor the stream. The table is tried again later, as after any error
of its own.
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
    "give the executors the reader's environment (page executors-unfit): PYSPARK_PYTHON where it is "
    "installed, an archive of it by spark.archives, or addArtifacts of Spark Connect"
)
_SAME: Final = ("deltasmelt", "psycopg", "pyarrow", "deltalake")
_SETTING: Final = "snapshot.engine"


def unfit(what: str, remedy: str = REMEDY) -> DefiniteError:
    """The error ``executors-unfit``."""
    return DefiniteError(what, code=CODE, where=_SETTING, remedy=remedy)


def not_shared(uri: str) -> DefiniteError:
    """The error ``executors-unfit`` of a lake that is another one on the executors' machines."""
    return unfit(
        f"a file that an executor wrote into {uri} is not there for the reader",
        "a lake in a local folder needs a folder that all machines share; else use an object store, or "
        "snapshot.engine: local",
    )


def silent(seconds: float) -> DefiniteError:
    """The error ``executors-unfit`` of executors that did not answer."""
    return unfit(
        f"no executor came to the end of a first small task within {seconds:g} s",
        "see in Spark's page whether the cluster gives executors at all, and read their logs; or leave "
        "snapshot.engine at local",
    )


def without_executors(table: TableName, error: SmeltError) -> TableError:
    """The error of a table that executors were to copy and cannot, of one code whatever the reason."""
    where = "" if error.where in {None, _SETTING} else f"{error.where}: "
    return TableError(table, f"{where}{error.message}", code=CODE, remedy=error.remedy)


@cache
def versions() -> Mapping[str, str | None]:
    """The versions here of what has to be the same there; None of what came as a folder on the path."""
    return {package: _version(package) for package in _SAME}


def require_same(host: str, theirs: Mapping[str, str | None], readers: Mapping[str, str | None]) -> None:
    """See that an executor has the reader's versions. Pure.

    Args:
        host: the executor's.
        theirs: its versions.
        readers: as the reader's `versions`.

    Raises:
        DefiniteError: ``executors-unfit``.
    """
    for package, ours in readers.items():
        if theirs[package] != ours:
            raise unfit(f"the executor {host} has {package} {theirs[package]}, the reader {ours}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
