"""The class-data archive: used if it fits, created whole or not at all, and never an obstacle."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deltasmelt.pipelines.spark import archive_training, class_archive
from deltasmelt.pipelines.spark.class_archive import archive_of
from deltasmelt.pipelines.spark.jars import delta_jars
from deltasmelt.pipelines.spark.java import check_java
from deltasmelt.silver.spark.access import jvm_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

JAVA = 'openjdk version "17.0.1"'


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Set an environment without Spark's and Java's variables, with a cache for the test."""
    if "spark" in request.fixturenames:
        return
    jars = delta_jars()
    monkeypatch.setenv("SMELT_JARS", str(jars[0].parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (class_archive.SWITCH, "CI", "SPARK_HOME", "SPARK_CONF_DIR", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    jar = tmp_path / "delta.jar"
    jar.write_bytes(b"one")
    return jar


@pytest.mark.parametrize("settings", [{}, {"spark.master": "local[4]"}, {"spark.ui.enabled": "true"}])
def test_local_session_with_own_class_path_has_archive(jar: Path, settings: dict[str, str]) -> None:
    assert archive_of(settings, JAVA, [jar]) is not None


@pytest.mark.parametrize(
    "settings",
    [
        {"spark.master": "local-cluster[2,1,1024]"},
        {"spark.master": "spark://127.0.0.1:7077"},
        {"spark.driver.extraClassPath": "own.jar"},
        {"spark.jars": "own.jar"},
        {"spark.jars.packages": "a:b:1"},
        {"spark.driver.extraJavaOptions": "-Xss4m -XX:SharedArchiveFile=own.jsa"},
        {"spark.driver.extraJavaOptions": "-XX:ArchiveClassesAtExit=own.jsa"},
        {"spark.driver.extraJavaOptions": "-Xshare:on"},
    ],
)
def test_other_sessions_run_as_if_there_were_none(jar: Path, settings: dict[str, str]) -> None:
    assert archive_of(settings, JAVA, [jar]) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (class_archive.SWITCH, "off"),
        ("PYSPARK_SUBMIT_ARGS", "--driver-class-path /opt/pg.jar pyspark-shell"),
        ("SPARK_CONF_DIR", "/etc/spark"),
        ("HADOOP_CONF_DIR", "/etc/hadoop"),
        ("JAVA_TOOL_OPTIONS", "-XX:ArchiveClassesAtExit=own.jsa"),
        ("XDG_CACHE_HOME", "/ci/10:00:00/cache"),
        ("XDG_CACHE_HOME", '/ci/a "quoted" cache'),
    ],
)
def test_environment_changing_class_path_has_no_archive(
    jar: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert archive_of({}, JAVA, [jar]) is None


def test_different_java_or_jars_have_different_archive(jar: Path) -> None:
    """A missing jar has no archive."""
    first = archive_of({}, JAVA, [jar])
    assert first == archive_of({}, f"Picked up JAVA_TOOL_OPTIONS: -Dport=4711\n{JAVA}", [jar])
    assert first != archive_of({}, 'openjdk version "21"', [jar])
    jar.write_bytes(b"another")
    assert first != archive_of({}, JAVA, [jar])
    jar.unlink()
    assert archive_of({}, JAVA, [jar]) is None


def test_archive_writable_by_other_account_is_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "archives"
    folder.mkdir(mode=0o700)
    archive = folder / "x.jsa"
    assert not class_archive.usable(archive)
    archive.touch(mode=0o444)
    assert class_archive.usable(archive)
    for path, mode in ((folder, 0o777), (archive, 0o666)):
        before = path.stat().st_mode
        path.chmod(mode)
        assert not class_archive.usable(archive)
        path.chmod(before)


@pytest.mark.process
@pytest.mark.parametrize("content", [b"", b"\0" * 5000, os.urandom(5000)])
def test_damaged_archive_is_ignored_silently(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "damaged.jsa"
    archive.write_bytes(content)
    java = shutil.which("java")
    assert java is not None
    options = class_archive.options(archive).split()
    process = subprocess.run([java, *options, "-version"], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (0, "")
    plain = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    # It costs Java's own archive, too: that is all.
    assert process.stderr.replace(", sharing", "") == plain.stderr.replace(", sharing", "")


DIES = """
import sys
from pathlib import Path
from deltasmelt.pipelines.spark import class_archive
from deltasmelt.pipelines.spark.session import spark_session, stop_session
class_archive.options = lambda _: "-Xss1"
settings = {"spark.driver.memory": "512m", "spark.master": "local[1]"}
session = spark_session(settings, log=Path(sys.argv[1]), brief=True)
print(session.sql("SELECT 1").count(), stop_session(session))
"""


@pytest.mark.spark
def test_jvm_failing_with_archive_starts_without(tmp_path: Path) -> None:
    """A thread stack of a byte ends the JVM at the start, as a broken archive does."""
    archive = archive_of({}, check_java(), delta_jars())
    assert archive is not None
    archive.parent.mkdir(mode=0o700, parents=True)
    archive.touch(mode=0o444)
    command = [sys.executable, "-c", DIES, str(tmp_path / "spark.log")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.stdout.split(), process.stderr) == (["1", "0"], "")
    assert "stack size" in (tmp_path / "spark.log").read_text()
    assert not archive.exists()


def test_archive_is_made_manually_and_tried_once_daily(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A failed training fails again, and costs half a minute of CPU each time."""
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    archive = tmp_path / "archives" / "x.jsa"
    class_archive.make_later(archive)
    assert not started, "nobody sits at a terminal"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    class_archive.make_later(archive)
    class_archive.make_later(archive)
    assert [command[1:] for command in started] == [
        ["-P", "-m", "deltasmelt.pipelines.spark.archive_training"]
    ]
    os.utime(archive.parent / ".tried", (0, 0))
    class_archive.make_later(archive)
    assert len(started) == 2
    os.utime(archive.parent / ".tried", (0, 0))
    archive.touch(mode=0o444)
    class_archive.make_later(archive)
    assert len(started) == 2, "it is there"


def trained(code: int | None, *, writes: bool = True) -> Callable[..., int | None]:
    """Return a training with this exit code."""

    def train(draft: Path, *_: object) -> int | None:
        if writes:
            draft.write_bytes(b"classes")
        return code

    return train


def test_archive_gets_name_only_when_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archive_of({}, check_java(), delta_jars())
    assert archive is not None
    for train in (trained(-signal.SIGKILL), trained(None), trained(0, writes=False)):
        monkeypatch.setattr(archive_training, "_train", train)
        archive_training.make()
        assert not archive.exists()
    (archive.parent / ".draft-of-one-that-was-killed").mkdir()
    older_archives = [archive.parent / f"{number}.jsa" for number in range(6)]
    for older_archive in older_archives:
        older_archive.touch()
        os.utime(older_archive, (1, 1))
    monkeypatch.setattr(archive_training, "_train", trained(0))
    archive_training.make()
    assert archive.read_bytes() == b"classes"
    assert sum(older_archive.exists() for older_archive in older_archives) == 3, "the oldest go"
    assert not list(archive.parent.glob(".draft-*"))
    monkeypatch.setattr(archive_training, "_train", trained(1, writes=False))
    archive_training.make()
    assert archive.read_bytes() == b"classes"


def test_missing_cache_is_reported_in_single_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "deltasmelt").touch()
    monkeypatch.setattr(sys, "argv", ["archive_training"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    archive_training.main()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Spark will start without an archive of its classes: ")
    assert captured.err.count("\n") == 1


@pytest.mark.spark
def test_the_session_of_the_tests_runs_over_it(spark: SparkSession) -> None:
    """`make test` creates the archive beforehand; without the archive the test checks nothing."""
    jvm = jvm_process()
    assert jvm is not None
    words = Path(f"/proc/{jvm.pid}/cmdline").read_bytes().decode().split("\0")
    archives = [word.partition("=")[2] for word in words if word.startswith("-XX:SharedArchiveFile=")]
    maps = Path(f"/proc/{jvm.pid}/maps").read_text()
    assert [archive for archive in archives if archive not in maps] == []
    assert spark.sql("SELECT 1").count() == 1
