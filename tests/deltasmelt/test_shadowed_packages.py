"""A repository that has folders of the names of our packages: who looks where, and what is said."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from _deltasmelt.ours import PACKAGES, require_ours

if TYPE_CHECKING:
    from subprocess import CompletedProcess

ROOT = Path(__file__).parents[2]
THEIRS = "raise SystemExit(f'theirs: {__file__}')\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Somebody's own medallion, with a console script as an installer writes it beside."""
    folder = tmp_path / "their repository"
    for name in ("bronze", "pipelines"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(THEIRS)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["smelt"].partition(":")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "smelt").write_text(
        f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
    )
    return folder


def python(*words: str | Path, folder: Path, path: str = str(ROOT)) -> CompletedProcess[str]:
    """Run Python in a folder; where we are not installed from here, `path` is how it finds us."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**environment, "PYTHONPATH": path},
        timeout=60,
    )


def refused(done: CompletedProcess[str], folder: Path, names: str = "its bronze and pipelines shadow") -> str:
    """The remedy, after making sure that one message names the folder."""
    assert done.returncode == 1
    said, remedy = done.stderr.splitlines()[-2:]
    assert f"{folder}: {names} the package" in said
    assert said.endswith(f"of deltasmelt in {ROOT} [package-shadowed]")
    return remedy.removeprefix("remedy: ")


def test_the_command_does_not_look_into_the_working_folder(repository: Path) -> None:
    done = python(repository.parent / "bin" / "smelt", "--version", folder=repository)
    assert done.stdout.startswith("deltasmelt "), done.stderr


def test_the_command_refuses_what_pythonpath_puts_in_front(repository: Path) -> None:
    path = os.pathsep.join([str(repository), str(ROOT)])
    done = python(repository.parent / "bin" / "smelt", "--version", folder=repository.parent, path=path)
    assert refused(done, repository).startswith("take that out of PYTHONPATH")
    assert len(done.stderr.splitlines()) == 2, "and no traceback"


def test_python_m_pipelines_refuses_the_working_folder_and_says_how_else(repository: Path) -> None:
    shutil.rmtree(repository / "pipelines")  # theirs would be run, and we not at all
    done = python("-m", "pipelines", "--version", folder=repository)
    assert "`python -P -m pipelines`" in refused(done, repository, "its bronze shadows")
    assert len(done.stderr.splitlines()) == 2
    safely = python("-P", "-m", "pipelines", "--version", folder=repository)
    assert safely.stdout.startswith("deltasmelt "), safely.stderr


def test_the_import_refuses_what_a_notebook_has_in_its_folder_until_that_is_off_the_path(
    repository: Path,
) -> None:
    done = python("-c", "import deltasmelt", folder=repository)
    remedy = refused(done, repository)
    statement, _, more = remedy.partition(" before the import")
    assert statement == "sys.path.remove('')"
    assert more
    done = python("-c", f"import sys; {statement}; import deltasmelt, bronze.errors", folder=repository)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_import_refuses_what_is_loaded_already(repository: Path) -> None:
    (repository / "bronze" / "__init__.py").write_text("")
    code = "import sys, bronze; sys.path.remove(''); import deltasmelt"
    remedy = refused(python("-c", code, folder=repository), repository, "its bronze shadows")
    assert remedy.startswith("it is loaded already: use deltasmelt in a process that does not import it")


def test_what_spark_submit_runs_does_not_look_into_its_own_folder_nor_the_working_one(
    repository: Path,
) -> None:
    shutil.copy(ROOT / "conf" / "spark-submit" / "main.py", repository)
    done = python(repository / "main.py", "--version", folder=repository)
    assert done.stdout.startswith("deltasmelt "), done.stderr


def test_a_folder_that_is_no_package_and_a_link_to_our_own_shadow_nothing(tmp_path: Path) -> None:
    (tmp_path / "bronze").mkdir()
    (tmp_path / "link").symlink_to(ROOT)
    path = os.pathsep.join([str(tmp_path), str(tmp_path / "link"), str(ROOT)])
    done = python("-c", "import deltasmelt, bronze.errors", folder=tmp_path, path=path)
    assert (done.returncode, done.stderr) == (0, "")


def test_each_of_our_packages_is_looked_at() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*PACKAGES, "deltasmelt", "_deltasmelt"} == set(wheel["packages"])
    require_ours()
