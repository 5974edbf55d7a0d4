"""User files with the names of imported modules, in the working folder of a command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipelines.test_cli import pipeline_file


@pytest.mark.process
def test_the_reader_imports_nothing_from_the_working_folder(tmp_path: Path) -> None:
    for name in ("deltasmelt", "json", "psycopg"):
        (tmp_path / f"{name}.py").write_text(
            "raise SystemExit(f'imported from the working folder: {__file__}')\n"
        )
    file = pipeline_file(tmp_path, "service=nowhere")
    process = subprocess.run(
        [Path(sys.executable).parent / "smelt", "bronze", file],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "SMELT_LOGS": str(tmp_path / "logs"),
        },
    )
    assert process.returncode == 1
    (log,) = (tmp_path / "logs").glob("*/smelt.log")
    assert "[service-unknown]" in process.stderr, process.stderr + log.read_text()
