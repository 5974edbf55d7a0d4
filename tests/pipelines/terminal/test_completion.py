"""Completion as a shell requests it: a real bash sources the installed script and calls its function."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipelines.test_cli import make_lake, pipeline_file

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a home folder in which `smelt --install-completion` installs the script."""
    folder = tmp_path_factory.mktemp("home")
    output = bash("smelt --install-completion", folder, folder)
    assert "bash completion installed in" in output
    assert ".bash_completions/smelt.sh" in (folder / ".bashrc").read_text()
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Create a folder with a pipeline file, two documents and a lake of one table."""
    pipeline_file(tmp_path, "host=127.0.0.1 port=1", more="gold: {documents: [documents/*.yml]}\n")
    (tmp_path / "documents").mkdir()
    for name in ("customer", "order"):
        (tmp_path / "documents" / f"{name}.yml").write_text(
            f"document: {name}\nroot: public.{name}s\nfields: [id]\n"
        )
    (tmp_path / "notes.txt").write_text("none of ours")
    make_lake(tmp_path)
    return tmp_path


def bash(script: str, home: Path, folder: Path) -> str:
    """Run a bash script and return its output."""
    process = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\ntrue"],
        check=True,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        env={
            **os.environ,
            "HOME": str(home),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SMELT_LOGS": str(home / "logs"),
        },
    )
    assert process.stderr == ""
    return process.stdout


def completed(home: Path, folder: Path, *lines: str) -> list[list[str]]:
    """Return bash's suggestions for the last word of each command line."""
    script = ["source ~/.bash_completions/smelt.sh"]
    for line in lines:
        last = '""' if line.endswith(" ") else ""
        script += [
            f"COMP_WORDS=({line}{last})",
            "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))",
            "_smelt_completion smelt",
            'echo "${COMPREPLY[@]}"',
        ]
    return [line.split() for line in bash("\n".join(script), home, folder).splitlines()]


def test_bash_completes_commands_and_options(home: Path, tmp_path: Path) -> None:
    commands, options = completed(home, tmp_path, "smelt s", "smelt check --o")
    assert commands == ["silver", "status", "sql", "snapshot"]
    assert options == ["--offline", "--output"]


def test_bash_completes_pipeline_files_documents_tables_and_codes(home: Path, project: Path) -> None:
    offered = completed(
        home,
        project,
        "smelt run ",
        "smelt verify pipeline.yml --document c",
        "smelt snapshot pipeline.yml pub",
        "smelt rebuild pipeline.yml silver ",
        "smelt explain-error slot-lo",
    )
    assert offered == [
        ["pipeline.yml"],
        ["customer"],
        ["public.orders"],
        ["orders"],
        ["slot-lost"],
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_protocols_answer_too(shell: str, project: Path) -> None:
    """zsh and fish are not always installed, so the test calls the command as their scripts do."""
    process = subprocess.run(
        [BIN / "smelt"],
        check=False,
        capture_output=True,
        text=True,
        cwd=project,
        env={
            **os.environ,
            "_SMELT_COMPLETE": f"complete_{shell}",
            "_TYPER_COMPLETE_ARGS": "smelt preview pipeline.yml ",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
    )
    assert process.stderr == ""
    assert "customer" in process.stdout
    assert "order" in process.stdout
