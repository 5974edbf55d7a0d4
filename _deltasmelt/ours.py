"""Whether the packages of deltasmelt are found where it lies, or foreign ones of the same names before them.

Python imports the first package of a name on its path. ``python -m`` and notebooks put the working folder in
front; ``PYTHONPATH`` comes before what is installed. A repository with a package ``bronze`` there would get
its own code imported by ours, and an error somewhere in the middle that names neither.

A folder without ``__init__.py`` shadows nothing: Python prefers a package with one, wherever that is.

Only the standard library is imported here. The look takes less than a millisecond of each start.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGES: Final = ("bronze", "silver", "gold", "pipelines")
CODE: Final = "package-shadowed"


class PackageShadowedError(ImportError):
    """A foreign package has the name of one of ours.

    It is none of `bronze.errors`, because that may be what cannot be imported.

    Attributes:
        code: stable slug, as of every error of deltasmelt.
        message: what happened.
        where: the folder in the way.
        remedy: what to do.
    """

    def __init__(self, message: str, *, where: str, remedy: str) -> None:
        super().__init__(message)
        self.code = CODE
        self.message = message
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.where}: {self.message} [{self.code}]\nremedy: {self.remedy}"


def require_ours(*, command: bool = False) -> None:
    """See that importing each of `PACKAGES` gives ours.

    Args:
        command: the remedy is for somebody who has called a command.

    Raises:
        PackageShadowedError: it gives, or has given, another one.
    """
    home = Path(__file__).absolute().parents[1]
    folders = {name: folder for name in PACKAGES if (folder := _folder(name)) is not None}
    foreign = {name: folder for name, folder in folders.items() if not _same(folder, home)}
    if not foreign:
        return
    where = next(iter(foreign.values()))
    names = [name for name, folder in foreign.items() if folder == where]
    said = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    what = "shadows the package" if len(names) == 1 else "shadow the packages"
    raise PackageShadowedError(
        f"its {said} {what} of deltasmelt in {home}",
        where=str(where),
        remedy=_remedy(where, loaded=any(name in sys.modules for name in names), command=command),
    )


def exit_unless_ours() -> None:
    """As `require_ours`, for a command: it ends with the message, and with exit code 1."""
    try:
        require_ours(command=True)
    except PackageShadowedError as error:
        sys.exit(f"error: {error}")


def _folder(name: str) -> Path | None:
    """The folder in which an import finds a package or module; None where it finds none."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # loaded, and does not say from where
        return None
    if spec is None:
        return None
    place = next(iter(spec.submodule_search_locations or ()), spec.origin)
    return None if place is None else Path(place).absolute().parent


def _same(one: Path, other: Path) -> bool:
    return one == other or one.resolve() == other.resolve()


def _remedy(folder: Path, *, loaded: bool, command: bool) -> str:
    if loaded:
        return "it is loaded already: use deltasmelt in a process that does not import it, or rename it"
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if any(entry and _same(Path(entry), folder) for entry in named):
        return "take that out of PYTHONPATH (of spark-submit: --py-files), or rename what is in it"
    if command and _same(folder, Path.cwd()):
        return "call `smelt`, which does not look into the working folder, or `python -P -m pipelines`"
    entry = next((entry for entry in sys.path if _same(Path(entry), folder)), str(folder))
    return f"sys.path.remove({entry!r}) before the import, or rename what is in that folder"
