"""The class-data archive: used where it fits, and never in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines.spark import class_archive
from pipelines.spark.jars import delta_jars
from pipelines.spark.java import check_java
from pipelines.spark.session import jvm_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, True),
        ({"spark.master": "local[4]"}, True),
        ({"spark.master": "local-cluster[2,1,1024]"}, False),
        ({"spark.master": "spark://127.0.0.1:7077"}, False),
        ({"spark.driver.extraClassPath": "own.jar"}, False),
        ({"spark.driver.extraJavaOptions": "-Xss4m -XX:SharedArchiveFile=own.jsa"}, False),
    ],
)
def test_a_local_session_over_our_class_path_alone_uses_it(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, wanted: bool
) -> None:
    assert class_archive.wanted(settings) == wanted
    monkeypatch.setenv(class_archive.SWITCH, "off")
    assert not class_archive.wanted(settings)


def test_another_java_and_other_jars_have_another_archive(tmp_path: Path) -> None:
    jar = tmp_path / "delta.jar"
    jar.write_bytes(b"one")
    first = class_archive.place("java 17", [jar])
    assert first == class_archive.place("java 17", [jar])
    assert first != class_archive.place("java 21", [jar])
    jar.write_bytes(b"another")
    assert first != class_archive.place("java 17", [jar])


@pytest.mark.process
@pytest.mark.parametrize("content", [b"", b"\0" * 5000, os.urandom(5000)])
def test_a_damaged_archive_is_passed_over_without_a_word(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "damaged.jsa"
    assert class_archive.options(archive) == "", "there is none yet"
    archive.write_bytes(content)
    java = shutil.which("java")
    assert java is not None
    given = [word.strip('"') for word in class_archive.options(archive).split()]
    done = subprocess.run([java, *given, "-version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    plain = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    assert done.stderr.replace(", sharing", "") == plain.stderr.replace(", sharing", "")


def test_one_try_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails once fails again, and costs half a minute of CPU each time."""
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    archive = tmp_path / "archives" / "x.jsa"
    class_archive.make_later(archive)
    class_archive.make_later(archive)
    assert [command[1:] for command in started] == [["-m", "pipelines.spark.archive_training"]]
    os.utime(archive.with_suffix(".tried"), (0, 0))
    class_archive.make_later(archive)
    assert len(started) == 2
    os.utime(archive.with_suffix(".tried"), (0, 0))
    archive.touch()
    class_archive.make_later(archive)
    assert len(started) == 2, "it is there"


@pytest.mark.spark
def test_the_session_of_the_tests_runs_over_it(spark: SparkSession) -> None:
    """`make test` makes it beforehand; another run uses it where it is there."""
    jvm = jvm_process()
    assert jvm is not None
    archive = class_archive.place(check_java(), delta_jars())
    words = Path(f"/proc/{jvm.pid}/cmdline").read_bytes().decode().split("\0")
    assert (f"-XX:SharedArchiveFile={archive}" in words) == archive.is_file()
    maps = Path(f"/proc/{jvm.pid}/maps").read_text()
    assert (str(archive) in maps) == archive.is_file()
    assert spark.sql("SELECT 1").count() == 1
