"""The place of log files, and their removal."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from deltasmelt.pipelines.private import own_folder
from deltasmelt.pipelines.terminal import logs
from deltasmelt.pipelines.terminal.logs import log_folder, spark_log

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[3]
WRITER = """
import logging, sys
from pathlib import Path
from deltasmelt.pipelines.terminal import logs
logs._LARGEST, logs._OLDER = 2000, 1000
log = logging.getLogger("x")
log.addHandler(logs.SharedLog(Path(sys.argv[1])))
for number in range(300):
    log.warning("%s:%d:%s:end", sys.argv[2], number, "x" * 40)
"""


def test_log_of_running_process_is_never_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_LOGS", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    living = [os.getppid(), 1, os.getpid()]
    names = [f"spark-{pid}.log" for pid in living]
    dead = [f"spark-{99_000_000 + number}.log" for number in range(12)]
    names.append(f"spark-{os.getpid()}.log.1")  # the older half
    logs_of_p = log_folder("p")
    for age, name in enumerate([*names, f"spark-{ended.pid}.log", "spark-old.log", *dead]):
        (logs_of_p / name).touch()
        os.utime(logs_of_p / name, (age, age))
    assert spark_log("p") == logs_of_p / f"spark-{os.getpid()}.log"
    assert {path.name for path in logs_of_p.iterdir()} == {*names, *dead[-9:]}
    assert logs_of_p != log_folder("q"), "two pipelines share neither logs nor a report of quality"


def test_logs_without_home_use_private_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no-folder").touch()
    monkeypatch.delenv("SMELT_LOGS", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "no-folder"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    expected = tmp_path / f"deltasmelt-{os.geteuid()}"
    assert log_folder("p") == expected / "p"
    assert expected.stat().st_mode & 0o777 == 0o700
    logs._temporary.cache_clear()
    expected.chmod(0o777)
    folder = log_folder("p")
    assert not folder.is_relative_to(expected)
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert log_folder("p") == folder
    logs._temporary.cache_clear()


def test_folder_is_own_without_links_or_foreign_writers(tmp_path: Path) -> None:
    assert own_folder(tmp_path / "new" / "one")
    assert own_folder(tmp_path / "new" / "one")
    (tmp_path / "link").symlink_to(tmp_path / "new")
    assert not own_folder(tmp_path / "link")
    (tmp_path / "file").touch()
    assert not own_folder(tmp_path / "file")
    assert not own_folder(tmp_path / "file" / "below")
    for mode in (0o770, 0o702):
        (tmp_path / "new").chmod(mode)
        assert not own_folder(tmp_path / "new")
    if os.geteuid() == 0:
        (tmp_path / "new").chmod(0o700)
        os.chown(tmp_path / "new", 65534, 65534)
        assert not own_folder(tmp_path / "new")


def test_log_becomes_private_even_if_created_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_LOGS", str(tmp_path))
    (log_folder("p") / "smelt.log").touch(0o644)
    handlers = list(logging.getLogger().handlers)
    path = logs.start_logging("p")
    try:
        logging.getLogger("deltasmelt").warning("told")
    finally:
        for handler in set(logging.getLogger().handlers) - set(handlers):
            logging.getLogger().removeHandler(handler)
            handler.close()
        logging.captureWarnings(capture=False)
    assert "told" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    with logs.open_log(tmp_path / "new.log", "ab"):
        assert (tmp_path / "new.log").stat().st_mode & 0o777 == 0o600


def test_long_process_rotates_log_shared_with_others(tmp_path: Path) -> None:
    """Every line is whole and in a single file, regardless of the rotating process and its moment."""
    log = tmp_path / "smelt.log"
    arguments = [sys.executable, "-c", WRITER, str(log)]
    writers = [subprocess.Popen([*arguments, name], cwd=ROOT) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    files = [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
    assert len(files) > 10
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())
    assert max(path.stat().st_size for path in files) <= 2000 + 3 * 60
    lines = sorted(line for path in files for line in path.read_text().splitlines())
    assert lines == sorted(f"{name}:{number}:{'x' * 40}:end" for name in "abc" for number in range(300))


def test_old_logs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_LARGEST", 100)
    handler = logs.SharedLog(tmp_path / "smelt.log")
    for number in range(50):
        handler.emit(logging.LogRecord("x", 30, "", 0, f"line {number} {'x' * 30}", None, None))
    handler.close()
    assert {path.name for path in tmp_path.iterdir()} == {
        "smelt.log", "smelt.log.1", "smelt.log.2", "smelt.log.3", "smelt.log.lock",
    }  # fmt: skip
    assert "line 49" in (tmp_path / "smelt.log").read_text()


def test_new_log_folder_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMELT_LOGS", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert log_folder("p").stat().st_mode & 0o777 == 0o700
