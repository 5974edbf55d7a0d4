"""Check beforehand that executors, processes on probably other machines, can copy ranges.

bronze knows no engine. The caller passes in an object that runs a function in another process and returns the
function's text (`Executors`). `examine` tries all requirements before anything is locked or copied. One small
job checks that deltasmelt's packages are installed, in the reader's version. A second job connects to the
server and writes a file into the lake, and the reader must then see the file. A folder of one machine is no
lake for several machines. `bronze.snapshot.executor_errors` describes the later checks.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from deltasmelt.bronze.errors import DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.lake.parquet import delete_files, file_system
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.snapshot.executor_errors import CODE, not_shared, require_same, unfit, versions
from deltasmelt.bronze.snapshot.range_task import reach

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.lake.place import Location

PACKAGES: Final = ("deltasmelt", "psycopg", "pyarrow", "numpy", "deltalake", "pydantic")

_UNFIT: Final = ("PYTHON_VERSION_MISMATCH", "Cannot run program", "No module named", "Can't get attribute")
"""Signs in a job's error of a Python that did not start, or lacks the given function."""
_NO_WAY: Final = frozenset({"server-unreachable", "host-unknown"})
"""Codes of a server that is unreachable from the executor's machine."""


class Executors(Protocol):
    """An engine that runs functions in other processes, concurrently for several calling threads."""

    def run(self, work: Callable[[], str]) -> str:
        """Run a function in another process, retry if the process is lost; return the last attempt's text.

        Args:
            work: picklable function; may run more than once.

        Raises:
            TransientError: ``snapshot-task-failed``: no attempt completed.
        """
        ...

    def cancel(self) -> None:
        """Cancel all jobs; each running `run` fails soon."""
        ...


if TYPE_CHECKING:
    ExecutorsAtHand: TypeAlias = Callable[[], AbstractContextManager[Executors]]
    """Prepares executors for a block; the start may take long, and raises only `SmeltError`."""


def examine(executors: Executors, source: SourceSettings, destination: Location) -> None:
    """Check that executors can copy.

    Args:
        source: settings of exactly the holder's server.

    Raises:
        DefiniteError: ``executors-unfit``, or another reason that keeps executors from server or lake.
        TransientError: a reason that may heal, such as a server without a free connection.
    """
    _require_packages(json.loads(run_fit(executors, _packages_report(PACKAGES))))
    name = f"snapshot-probe-{uuid.uuid4()}"
    try:
        tried = json.loads(executors.run(partial(reach, source, destination, name)))
        if "error" in tried:
            raise _of_executor(tried, source)
        if file_system(destination).get_file_info(name).size != tried["size"]:
            raise not_shared(destination)
    finally:
        with suppress(OSError, pa.ArrowException):
            delete_files(destination, [name])


def run_fit(executors: Executors, work: Callable[[], str]) -> str:
    """Run a function; an executor whose Python cannot start the function is unfit without a retry.

    Raises:
        DefiniteError: ``executors-unfit``: Python cannot start the function.
        TransientError: any other failure, as `Executors.run` raises.
    """
    try:
        return executors.run(work)
    except TransientError as error:
        if any(sign in error.message for sign in _UNFIT):
            raise unfit(error.message) from error
        raise


def _packages_report(packages: tuple[str, ...]) -> Callable[[], str]:
    """Return a function that reports versions. Pickled by value: the executor may lack deltasmelt."""

    def report() -> str:
        import json  # noqa: PLC0415 - the pickled function carries no module
        import platform  # noqa: PLC0415
        import socket  # noqa: PLC0415
        from importlib import import_module, metadata  # noqa: PLC0415

        package_versions: dict[str, str | None] = {}
        failed: dict[str, str] = {}
        for package in packages:
            try:
                import_module("deltasmelt.bronze.snapshot.range_task" if package == "deltasmelt" else package)
            except Exception as error:  # noqa: BLE001 - a broken library may raise any error
                failed[package] = f"{type(error).__name__}: {error}"
                continue
            try:
                package_versions[package] = metadata.version(package)
            except metadata.PackageNotFoundError:  # the package is a folder on the path
                package_versions[package] = None
        host, python = socket.gethostname(), platform.python_version()
        return json.dumps({"host": host, "python": python, "found": package_versions, "failed": failed})

    return report


def _require_packages(report: dict[str, Any]) -> None:
    host, failed = report["host"], report["failed"]
    if failed:
        reasons = "; ".join(f"{package}: {error}" for package, error in sorted(failed.items()))
        raise unfit(f"the executor {host} lacks packages ({reasons}); its Python is {report['python']}")
    require_same(host, report["found"], versions())


def _of_executor(report: dict[str, Any], source: SourceSettings) -> SmeltError:
    """Convert an executor's failure at the server or the lake into an error of the reader."""
    error = report["error"]
    message = f"the snapshot executor {report['host']}: {error['message']}"
    if error["code"] in _NO_WAY:  # the server runs, because the reader is connected
        return DefiniteError(
            message,
            code=CODE,
            where=address_of(source),
            remedy="allow the executors' machines to reach the server, or leave snapshot.engine at local",
        )
    kind = TransientError if error["transient"] else DefiniteError
    return kind(
        message, code=error["code"], where=error["where"] or address_of(source), remedy=error["remedy"]
    )
