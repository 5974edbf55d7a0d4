"""Environment variables that hold a secret of the source: kept from processes that never connect to it.

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

_KNOWN: Final = {"PGPASSWORD"}
"""libpq's own, and those that a pipeline file that was read takes a secret from. Names are only added."""


def remember(names: Iterable[str]) -> None:
    """These variables hold a secret of the source, too."""
    _KNOWN.update(names)


def without_secret_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for a process that never connects to the source."""
    return {name: value for name, value in environment.items() if name not in _KNOWN}
