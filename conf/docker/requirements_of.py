"""The part of `requirements.lock` that some packages need, printed as a lock of its own.

    python requirements_of.py deltasmelt
    python requirements_of.py 'deltasmelt[spark,quality]' hatchling

The lock pins everything that development needs. An image holds only what it runs, by the same pins and the
same hashes. Which packages belong to which is in the lock's own comments: each pin names, behind ``# via``,
what asked for it. Those comments join the extras of a package, so the part may be larger than needed, never
smaller. What the lock lacks is an error: nothing is installed then.

It needs nothing but Python, because it runs before anything is installed.
"""

# ruff: noqa: INP001 - a script of the image's build, no module
from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==")
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")


def normal(name: str) -> str:
    """A package's name as the lock spells it, without extras and version."""
    match = _NAME.match(name)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def pins(lock: str) -> list[tuple[str, str, set[str]]]:
    """Each pin of the lock: its name, its lines, and the names of what asked for it.

    A name may have several pins, for different versions of Python.
    """
    found: list[tuple[str, str, set[str]]] = []
    for line in lock.splitlines():
        if match := _PIN.match(line):
            found.append((match[1], f"{line}\n", set()))
        elif found and line.startswith("    #"):
            asked = line.removeprefix("    #").strip().removeprefix("via").strip()
            found[-1][2].update({normal(asked)} - {""})
        elif found and line.startswith("    "):
            name, lines, via = found[-1]
            found[-1] = (name, f"{lines}{line}\n", via)
    return found


def wanted(asked: list[str], project: dict[str, object]) -> set[str]:
    """The names to begin with: of the project and its extras the dependencies, else the packages themselves.

    Raises:
        KeyError: an extra that the project does not have.
    """
    names: set[str] = set()
    for one in asked:
        if normal(one) != project["name"]:
            names.add(normal(one))
            continue
        extras = one.partition("[")[2].rstrip("]")
        options = project["optional-dependencies"]
        lists = [project["dependencies"], *(options[extra.strip()] for extra in extras.split(",") if extra)]
        names |= {normal(dependency) for dependencies in lists for dependency in dependencies}
    return names


def part(lock: str, roots: set[str]) -> str:
    """The pins of some packages and of everything that they need.

    Raises:
        KeyError: a package that the lock does not have.
    """
    all_pins = pins(lock)
    if missing := roots - {name for name, _, _ in all_pins}:
        raise KeyError(", ".join(sorted(missing)))
    names, before = set(roots), set()
    while names != before:
        before = set(names)
        names |= {name for name, _, via in all_pins if via & before}
    return "".join(lines for name, lines, _ in all_pins if name in names)


def main() -> None:
    """Print the part that the arguments name."""
    folder = Path.cwd()
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = (folder / "requirements.lock").read_text(encoding="utf-8")
    try:
        sys.stdout.write(part(lock, wanted(sys.argv[1:], project)))
    except KeyError as error:
        sys.exit(f"error: {error.args[0]} is neither in requirements.lock nor an extra of pyproject.toml")


if __name__ == "__main__":
    main()
