"""A run of the tests in several processes ends although one of its processes dies.

`make test` runs for three quarters of an hour where nobody watches. A died process costs its file: the run
names the test and goes on with all other files, instead of waiting for ever.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
CONFTEST: Final = """
from tests.conftest import (
    pytest_runtest_teardown, pytest_timeout_cancel_timer, pytest_timeout_set_timer,
    pytest_xdist_make_scheduler,
)
import pytest
from tests.progress import FileByFile

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(FileByFile(terminal, silence=1.5), "file-by-file")
"""
WITH_SPARK: Final = f"import pytest\npytestmark = pytest.mark.{'spark'}\n"
PASSING: Final = "def test_first(): pass\ndef test_second(): pass\n"
HANGS: Final = """
import ctypes
import pytest

def test_before(): pass

@pytest.mark.timeout(9)
def test_hangs():
    ctypes.PyDLL(None).sleep(600)  # a call that holds the interpreter's lock

def test_after(): pass
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run a project of seven files, in one of which a test of Spark's never ends."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = spark\n")
    for number in range(6):
        head = WITH_SPARK if number < 4 else ""
        (folder / f"test_{number}.py").write_text(head + (HANGS if number == 2 else PASSING))
    run = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "3", "--dist", "loadfile",
            "--no-loadscope-reorder", folder,
        ],
        cwd=folder, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip
    assert run.returncode == 1, run.stdout + run.stderr
    return run.stdout + run.stderr


def test_the_other_files_run(output: str) -> None:
    assert "1 failed, 11 passed" in output  # ten tests of other files, and the first of its own


def test_the_hanging_test_is_named_with_its_stack(output: str) -> None:
    assert "crashed while running 'test_2.py::test_hangs'" in output
    assert "in test_hangs" in output


def test_silence_names_the_running_test(output: str) -> None:
    assert "test_2.py::test_hangs, for " in output
