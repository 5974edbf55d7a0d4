"""New files: write all files or none, and overwrite no existing file.

Each text first goes to a temporary file in its folder. Then each name is created, which fails for an
existing name, and a rename brings the text to the name. A failure removes the created names. The last file
names the other files, so a process with the last file sees all files.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.pipelines.private import why_unwritable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_REMEDY: Final = "choose another file or folder with --out, or move the existing files"


def refuse_existing(files: Mapping[Path, object]) -> None:
    """Refuse existing files at the paths of new files.

    Raises:
        ConfigurationError: ``file-exists``.
    """
    existing = [path for path in files if path.exists() or path.is_symlink()]
    if existing:
        raise _exists(existing)


def write_new(files: Mapping[Path, str]) -> None:
    """Write all files, in this order, or none; make missing folders.

    Raises:
        ConfigurationError: ``file-exists``.
        DefiniteError: ``file-unwritable``.
    """
    refuse_existing(files)
    drafts = {path: path.with_name(f".{path.name}.{uuid.uuid4().hex}.new") for path in files}
    created: list[Path] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            drafts[path].write_text(text, encoding="utf-8")
        for path, draft in drafts.items():
            path.touch(exist_ok=False)
            created.append(path)
            draft.replace(path)
    except BaseException as error:
        for path in created:
            path.unlink(missing_ok=True)
        if isinstance(error, FileExistsError) and str(error.filename) in map(str, files):
            raise _exists([next(path for path in files if str(path) == str(error.filename))]) from None
        if isinstance(error, OSError):
            folders = dict.fromkeys(path.parent for path in files)
            unwritable = (
                (folder, reason) for folder in folders if (reason := why_unwritable(folder)) is not None
            )
            place, reason = next(unwritable, (error.filename or next(iter(folders)), error.strerror))
            raise DefiniteError(
                f"cannot be written: {reason}; nothing was written",
                code="file-unwritable",
                where=str(place),
                remedy="choose a folder that you may write to, with --out",
            ) from None
        raise
    finally:
        for draft in drafts.values():
            with suppress(OSError):  # its folder was never made, or cannot be entered
                draft.unlink(missing_ok=True)


def _exists(paths: list[Path]) -> ConfigurationError:
    more_paths = f" (and {', '.join(str(path) for path in paths[1:])})" if paths[1:] else ""
    return ConfigurationError(
        f"already exists{more_paths}; nothing was written",
        code="file-exists",
        where=str(paths[0]),
        remedy=_REMEDY,
    )
