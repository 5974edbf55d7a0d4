"""Environment variables with secrets needless for Spark: kept from the JVM.

A reader of a process's memory, such as root, can read the environment anyway; but an environment also gets
into crash reports and support bundles. Spark's JVM needs no password of the source, so the JVM gets none. The
reader's process needs the password: the process reads the pipeline file again, and connects.

A process works on one pipeline. So this module holds the facts about its file once, and no caller on the way
to the JVM has to pass them on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_KNOWN: Final = {"PGPASSWORD", "SMELT_HTTP_TOKEN"}
"""Variables of libpq, of the status page, and of the pipeline file's secrets. Names are only added."""
_NEEDED: Final = frozenset({
    "HOME", "HOSTNAME", "JAVA_HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PWD",
    "PYTHONPATH", "SHELL", "SPARK_HOME", "TMPDIR", "TZ", "USER",
})  # fmt: skip
"""Variables without secrets, though a connection string may contain some: a JVM needs them to start."""


def remember(names: Iterable[str]) -> None:
    """Add variables with a secret of the source or of the pipeline."""
    _KNOWN.update(set(names) - _NEEDED)


def without_secret_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a process without connections to the source."""
    return {name: value for name, value in environment.items() if name not in _KNOWN}
