"""The versions that `make matrix` and `make lowest` read from the project file."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement

from tests.matrix import ROOT, floors, rows

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_dependencies_have_allowed_floors_and_lock_in_bounds() -> None:
    needed = {
        requirement.name: requirement.specifier for requirement in map(Requirement, PROJECT["dependencies"])
    }
    assert set(floors()) == set(needed)
    assert [name for name, version in floors().items() if version not in needed[name]] == []
    lock = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert [name for name, allowed in needed.items() if lock[name.replace(".", "-")] not in allowed] == []


def test_matrix_covers_claimed_pythons_with_lowest_pyarrow() -> None:
    """The matrix tries each claimed Python with the lowest pyarrow and with the lock."""
    claimed = [
        classifier[-4:]
        for classifier in PROJECT["classifiers"]
        if re.search(r"Python :: 3\.\d+$", classifier)
    ]
    lowest = {"pyarrow": floors()["pyarrow"]}
    tried = [(row.python, row.versions) for row in rows()]
    assert [line for line in claimed for versions in ({}, lowest) if (line, versions) not in tried] == []
