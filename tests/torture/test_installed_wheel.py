"""The wheel as a user installs it: a bare environment without the source tree, from `--help` to the demo."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv") or shutil.which(str(ROOT / ".uv" / "bin" / "uv"))
pytestmark = [pytest.mark.torture, pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(1800)]


def run(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, with no variable that leads to the source tree.

    A project with packages named as deltasmelt's own packages comes first on the path.
    """
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "SMELT_DEBUG", "PGHOST", "PGDATABASE", "PGSERVICE")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    for name in ("bronze", "silver", "gold", "pipelines"):  # a project of somebody's, first on the path
        (folder / "theirs" / name).mkdir(parents=True, exist_ok=True)
        (folder / "theirs" / name / "__init__.py").write_text("raise SystemExit(f'theirs: {__file__}')\n")
    return subprocess.run(
        [*map(str, words)],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**environment, "SMELT_LOGS": str(folder / "logs"), "PYTHONPATH": str(folder / "theirs")},
    )


def done(*words: str | Path, folder: Path) -> str:
    """Return the output of a program that must succeed."""
    ended = run(*words, folder=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel alone, without extras, into a new environment; return its `bin` folder."""
    folder = tmp_path_factory.mktemp("bare")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    done(sys.executable, "-m", "venv", "venv", folder=folder)
    install(folder / "venv" / "bin", *map(str, folder.glob("*.whl")))
    return folder / "venv" / "bin"


def install(bare: Path, *what: str) -> None:
    """Install by pip's rules, at the locked versions."""
    lock = (ROOT / "requirements.lock").read_text()
    versions = re.findall(r"^([\w.-]+==[^\s;\\]+)(.*?)\\?$", lock, re.MULTILINE)
    constraints = bare.parent / "constraints.txt"
    constraints.write_text("".join(f"{version}{marker.rstrip(' ')}\n" for version, marker in versions))
    pip: list[str | Path] = (
        [bare / "python", "-m", "pip", "install", "--quiet"]
        if UV is None
        else [UV, "pip", "install", "--quiet", "--python", bare / "python"]
    )
    done(*pip, "--constraint", constraints, *what, folder=bare.parent)


def test_wheel_works_alone_with_extras_and_demo(bare: Path, database: str, tmp_path: Path) -> None:
    smelt = bare / "smelt"
    assert "Get started:" in done(smelt, "--help", folder=tmp_path)
    assert done(smelt, "--version", folder=tmp_path).startswith("deltasmelt ")
    assert "**Remedy.**" in done(smelt, "explain-error", "slot-lost", folder=tmp_path)

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE customers (id int PRIMARY KEY, name text)")
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers)")
    assert "wrote pipeline.yml" in done(smelt, "init", "--dsn", database, folder=tmp_path)
    assert "no problems found" in done(smelt, "check", "pipeline.yml", "--offline", folder=tmp_path)
    without = run(smelt, "silver", "pipeline.yml", folder=tmp_path)
    assert without.returncode == 1
    assert "remedy: pip install 'deltasmelt[spark]'" in without.stderr

    install(bare, "deltasmelt[demo]")  # as the remedies say it; the installed wheel gets its extras
    output = done(smelt, "demo", "--seconds", "5", "--folder", "demo", folder=tmp_path)
    assert "equal" in output
    assert (tmp_path / "demo" / "lake").is_dir()
    code = (
        "import deltasmelt\n"
        "with deltasmelt.open('demo/pipeline.yml') as lake:\n"
        "    print(lake.table('silver.orders').count() > 0, lake.at().commit_lsn > 0)"
    )
    assert "True True" in done(bare / "python", "-c", code, folder=tmp_path), "in a session of its own"
    assert "error:" not in output
