"""Guards at bronze's effects: one effect fails once; the power fails at any moment.

`Faults` makes the n-th effect of a kind fail, before or after it happens, and otherwise counts effects;
`tests/bronze/enumerated.py` adds further kinds of faults. `Disk` models the disk after a power cut: a file
keeps its flushed bytes, and a name survives only if its folder was flushed afterwards.
"""

from __future__ import annotations

import errno
import shutil
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from deltalake.exceptions import DeltaError

from deltasmelt.bronze.effects import Effect

if TYPE_CHECKING:
    from collections.abc import Callable

When = Literal["before", "after"]

OF_THE_SOURCE: Final = frozenset(
    {
        Effect.CONNECT,
        Effect.STATEMENT,
        Effect.COPY_OUT,
        Effect.REPLICATION_COMMAND,
        Effect.EXPORT_SNAPSHOT,
        Effect.START_STREAM,
        Effect.RECEIVE,
        Effect.FEEDBACK,
    }
)
_OF_DELTA: Final = frozenset(
    {Effect.OPEN_TABLE, Effect.CREATE_TABLE, Effect.REFRESH, Effect.COMMIT, Effect.CHECKPOINT, Effect.CLEAN}
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure of the n-th effect of a kind, from 1; `place` restricts the count to places with a text."""

    door: Effect
    number: int
    when: When
    place: str = ""


class Faults:
    """A guard that counts effects and makes some fail; safe for concurrent threads."""

    def __init__(self, *faults: Fault) -> None:
        self._faults = dict.fromkeys(faults, 0)
        self._lock = threading.Lock()
        self.seen: Counter[Effect] = Counter()
        self.failed: list[tuple[Fault, str]] = []

    def __call__(self, door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        with self._lock:
            self.seen[door] += 1
            now = [fault for fault in self._faults if fault.door is door and fault.place in where]
            for fault in now:
                self._faults[fault] += 1
            now = [fault for fault in now if self._faults[fault] == fault.number]
        for fault in now:
            if fault.when == "before":
                self._fail(fault, where)
        result = effect()
        for fault in now:
            self._fail(fault, where)
        return result

    def _fail(self, fault: Fault, where: str) -> None:
        self.failed.append((fault, where))
        raise failure(fault.door, f"injected {fault.when} {fault.door} {fault.number} at {where}")


def failure(door: Effect, message: str) -> Exception:
    """Return the exception that the lake raises for an effect."""
    return DeltaError(message) if door in _OF_DELTA else OSError(errno.EIO, message)


class Disk:
    """A model of the disk contents below a folder after a power cut.

    Args:
        folder: folder whose contents are all created after this model.
        each: called after each effect, with its kind and place.
    """

    def __init__(self, folder: Path, each: Callable[[Effect, str], None] | None = None) -> None:
        self._folder = folder
        self._each = each
        self._flushed: dict[int, int] = {}
        self._names: dict[int, dict[str, int]] = {}

    def __call__(self, door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        result = effect()
        if door is Effect.FLUSH:
            self._flush(Path(where))
        if self._each is not None:
            self._each(door, where)
        return result

    def _flush(self, path: Path) -> None:
        inode = path.stat().st_ino
        if path.is_dir():
            self._names[inode] = {entry.name: entry.stat().st_ino for entry in path.iterdir()}
        else:
            self._flushed[inode] = path.stat().st_size

    def is_flushed(self, file: Path) -> bool:
        """Check whether a file's bytes, its name and the names of all its folders are on disk."""
        inode = file.stat().st_ino
        if file.is_file() and self._flushed.get(inode) != file.stat().st_size:
            return False
        name_flushed = self._names.get(file.parent.stat().st_ino, {}).get(file.name) == inode
        return name_flushed and (file.parent == self._folder or self.is_flushed(file.parent))

    def cut(self, target: Path, *, names_last: bool) -> None:
        """Write the contents that a power cut leaves to a new folder.

        Args:
            names_last: keep names that were not flushed, as many file systems do. A file without a complete
                flush is then empty.
        """
        target.mkdir()
        self._copy(self._folder, target, names_last=names_last)

    def _copy(self, folder: Path, target: Path, *, names_last: bool) -> None:
        durable = self._names.get(folder.stat().st_ino, {})
        for entry in folder.iterdir():
            inode = entry.stat().st_ino
            if not names_last and durable.get(entry.name) != inode:
                continue
            if entry.is_dir():
                (target / entry.name).mkdir()
                self._copy(entry, target / entry.name, names_last=names_last)
            elif self._flushed.get(inode) == entry.stat().st_size:
                shutil.copyfile(entry, target / entry.name)
            else:
                (target / entry.name).touch()
