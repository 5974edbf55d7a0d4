"""Environment variables that hold a secret which Spark has no use for: kept from the JVM.

Secrets of the source, the address that alerts are posted to, the status page's token.

Whoever may read a process's memory may read its environment, and so can root; but an environment also gets
into crash reports and support bundles. The JVM of Spark needs no password of the source, so it gets none. The
reader's process does: it reads the pipeline file again, and connects.

A process works on one pipeline. So what is known of its file is known here, once, without every caller on the
way to the JVM having to hand it on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_KNOWN: Final = {"PGPASSWORD", "SMELT_HTTP_TOKEN"}
"""libpq's, the status page's, and those that a pipeline file takes a secret from. Names are only added."""
_NEEDED: Final = frozenset({
    "HOME", "HOSTNAME", "JAVA_HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PWD",
    "PYTHONPATH", "SHELL", "SPARK_HOME", "TMPDIR", "TZ", "USER",
})  # fmt: skip
"""No secrets, though a connection string may be composed of some; without them a JVM does not start."""


def remember(names: Iterable[str]) -> None:
    """These variables hold a secret of the source or of the pipeline, too."""
    _KNOWN.update(set(names) - _NEEDED)


def without_secret_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for a process that never connects to the source."""
    return {name: value for name, value in environment.items() if name not in _KNOWN}
