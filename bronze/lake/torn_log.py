"""A log entry of which a power cut left a part.

**What is left.** An entry gets its name before its bytes are on disk (`bronze.lake.disk`). A power cut
between that and the flush leaves it empty, or with some pages of what was written. Delta takes an empty one
for a commit of nothing, rightly. One that breaks off inside of a line it refuses, and with it the whole
table. One that breaks off after a line it takes for the whole, although it names only a part of the files, or
the files without the marks.

**What is done.** Each of our commits says in its first line of how many actions it consists. Any process that
opens a table to write it compares (`set_torn_aside`). An entry that lacks something was not flushed, so
nothing was ever done on the strength of it: the slot was not confirmed. It is as if the commit had failed. It
gets another name, by which Delta passes it over, and the rows are sent again. Should a disk have lost what it
acknowledged, the position that is found is then before the slot's, and that is a definite error of its own
(`bronze.stream.continuity`).

**What is left alone.** Only entries that say so are touched. Others, Spark's above all, may have been relied
on without a flush, by a cut that names them: to take one away would hide a loss that is loud now.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#delta-log-entries.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

from bronze.errors import DefiniteError
from bronze.lake.disk import entries_of, entry_path, flush_to_disk, newest_checkpoint
from bronze.lake.folders import local_folder

if TYPE_CHECKING:
    from pathlib import Path

ACTIONS_KEY: Final = "deltasmelt.actions"
"""Key of commitInfo under which a commit says how many actions follow it."""

_ASIDE: Final = ".torn"
_LOGGER = logging.getLogger("deltasmelt.reader")


def set_torn_aside(uri: str) -> bool:
    """Take the newest entry of a local table's log away, if it is torn; whether it was.

    No process is in the middle of writing what is found here: entries appear under their name by one step. An
    entry that others follow cannot be set aside. Those that came later were made by a process that had read
    it as it was: the error says so, and which file it is.

    Raises:
        DefiniteError: ``log-entry-torn``: one that others follow is.
        OSError: the log cannot be read or changed.
    """
    folder = local_folder(uri)
    log = None if folder is None else folder / "_delta_log"
    if log is None or not log.is_dir():
        return False
    known = newest_checkpoint(log)
    entries = sorted(each for each in entries_of(log) if known is None or each > known)
    torn = [each for each in entries if _is_torn(entry_path(log, each))]
    if not torn:
        return False
    if torn != entries[-1:]:
        raise DefiniteError(
            f"entry {torn[0]} of the table's log is torn, and later ones follow it",
            code="log-entry-torn",
            where=str(entry_path(log, torn[0])),
            remedy="restore the file from a backup, or move the lake away and start anew; "
            "see `smelt explain-error log-entry-torn`",
        )
    path = entry_path(log, torn[0])
    path.replace(path.with_name(f"{path.name}{_ASIDE}"))
    flush_to_disk(log)
    _LOGGER.warning("%s was torn by a power cut before anybody relied on it; it is set aside", path)
    return True


def _is_torn(path: Path) -> bool:
    """Whether an entry of ours lacks something of what was written; an empty one is a commit of nothing."""
    try:
        first, *lines = path.read_bytes().splitlines() or [b""]
    except FileNotFoundError:  # removed meanwhile: a checkpoint stands for it
        return False
    said = _actions(first)
    if said is None:
        return False
    try:
        return len([json.loads(line) for line in lines]) < said
    except ValueError:
        return True


def _actions(line: bytes) -> int | None:
    """How many actions an entry says that it has, in its first line; None where it is not ours."""
    try:
        return int(json.loads(line)["commitInfo"][ACTIONS_KEY])
    except (ValueError, KeyError, TypeError):
        return None
