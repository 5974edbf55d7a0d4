"""Print the part of `requirements.lock` that some packages need, as a separate lock.

    python requirements_of.py deltasmelt
    python requirements_of.py 'deltasmelt[spark,quality]' hatchling

The lock pins everything that development needs. An image holds only the packages that the image runs, with
equal pins and hashes. Comments in the lock connect packages: each pin names its dependents after ``# via``.
These comments join the extras of a package, so the part may be larger than needed, never smaller. If the lock
lacks a package, the script fails, and the image's build installs nothing.

The script needs nothing but Python, because the script runs before any installation.
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
    """Return a package's name as the lock spells it, without extras and version."""
    match = _NAME.match(name)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def pins(lock: str) -> list[tuple[str, str, set[str]]]:
    """Return each pin of the lock: its name, its lines, and the names of its dependents.

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
    """Return the names to begin with: the project's dependencies and extras, or the packages themselves.

    Raises:
        KeyError: the project lacks an extra.
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
    """Return the pins of some packages, with all their dependencies.

    Raises:
        KeyError: the lock lacks a package.
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
