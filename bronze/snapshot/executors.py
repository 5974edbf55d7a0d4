"""Other processes, most likely on other machines, that copy ranges; what they need is looked at beforehand.

bronze knows no engine. Whoever runs the reader hands in something that runs a function elsewhere and returns
its text (`Executors`). `examine` has them try all that copying needs, before anything is locked or copied.
One small job finds out whether our packages are there, in our version. Another one connects to the server and
writes a file into the lake, which the reader must see then. A folder of one machine is no lake for several.
What else is found, and when, `bronze.snapshot.fitness` says.
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
from deltasmelt.bronze.snapshot.fitness import CODE, not_shared, require_same, unfit, versions
from deltasmelt.bronze.snapshot.range_task import Place, reach

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    from deltasmelt.bronze.config.sections import SourceSettings

PACKAGES: Final = ("deltasmelt", "psycopg", "pyarrow", "numpy", "deltalake", "pydantic")

_UNFIT: Final = ("PYTHON_VERSION_MISMATCH", "Cannot run program", "No module named", "Can't get attribute")
"""What a job says that no Python of ours could even begin, or one without the function that it was given."""
_NO_WAY: Final = frozenset({"server-unreachable", "host-unknown"})
"""Codes of a server that cannot be reached from where it is tried."""


class Executors(Protocol):
    """Runs functions elsewhere, as many at once as it is asked for by threads."""

    def run(self, work: Callable[[], str]) -> str:
        """Run a function in another process, again if that process is lost; what the last attempt returned.

        Args:
            work: may be pickled; may run more than once.

        Raises:
            TransientError: ``snapshot-task-failed``: no attempt came to its end.
        """
        ...

    def cancel(self) -> None:
        """End what runs; each `run` under way fails soon."""
        ...


if TYPE_CHECKING:
    ExecutorsAtHand: TypeAlias = Callable[[], AbstractContextManager[Executors]]
    """Makes executors ready for a block; starting may take long, and raises `SmeltError` alone."""


def examine(executors: Executors, source: SourceSettings, place: Place) -> None:
    """See that executors can copy.

    Args:
        executors: ready.
        source: the very server.
        place: where files go.

    Raises:
        DefiniteError: ``executors-unfit``, or what else keeps them from server or lake.
        TransientError: what may heal, such as a server without a free connection.
    """
    _require_packages(json.loads(run_fit(executors, _look(PACKAGES))))
    name = f"snapshot-probe-{uuid.uuid4()}"
    try:
        tried = json.loads(executors.run(partial(reach, source, place, name)))
        if "error" in tried:
            raise _of_executor(tried, source)
        if file_system(place.uri).get_file_info(name).size != tried["size"]:
            raise not_shared(place.uri)
    finally:
        with suppress(OSError, pa.ArrowException):
            delete_files(place.uri, [name])


def run_fit(executors: Executors, work: Callable[[], str]) -> str:
    """Run a function; where no Python of ours could begin it, no other attempt will.

    Raises:
        DefiniteError: ``executors-unfit``.
        TransientError: as `Executors.run`.
    """
    try:
        return executors.run(work)
    except TransientError as error:
        if any(sign in error.message for sign in _UNFIT):
            raise unfit(error.message) from error
        raise


def _look(packages: tuple[str, ...]) -> Callable[[], str]:
    """A function that tells versions. It travels by value, for no module of ours may be there."""

    def look() -> str:
        import json  # noqa: PLC0415 - it takes nothing along
        import platform  # noqa: PLC0415
        import socket  # noqa: PLC0415
        from importlib import import_module, metadata  # noqa: PLC0415

        found: dict[str, str | None] = {}
        failed: dict[str, str] = {}
        for package in packages:
            try:
                import_module("deltasmelt.bronze.snapshot.range_task" if package == "deltasmelt" else package)
            except Exception as error:  # noqa: BLE001 - a library that is not whole may raise anything
                failed[package] = f"{type(error).__name__}: {error}"
                continue
            try:
                found[package] = metadata.version(package)
            except metadata.PackageNotFoundError:  # it came as a folder on the path
                found[package] = None
        host, python = socket.gethostname(), platform.python_version()
        return json.dumps({"host": host, "python": python, "found": found, "failed": failed})

    return look


def _require_packages(told: dict[str, Any]) -> None:
    host, failed = told["host"], told["failed"]
    if failed:
        said = "; ".join(f"{package}: {error}" for package, error in sorted(failed.items()))
        raise unfit(f"the executor {host} lacks packages ({said}); its Python is {told['python']}")
    require_same(host, told["found"], versions())


def _of_executor(told: dict[str, Any], source: SourceSettings) -> SmeltError:
    """What kept an executor from server or lake, as an error of the reader."""
    error = told["error"]
    message = f"the executor {told['host']} of the snapshots: {error['message']}"
    if error["code"] in _NO_WAY:  # the reader is connected, so the server is there
        return DefiniteError(
            message,
            code=CODE,
            where=address_of(source),
            remedy="let the executors' machines reach the server, or leave snapshot.engine at local",
        )
    kind = TransientError if error["transient"] else DefiniteError
    return kind(
        message, code=error["code"], where=error["where"] or address_of(source), remedy=error["remedy"]
    )
