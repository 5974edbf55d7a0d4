"""Options of the JVM that a local session starts with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines.session import jvm_options, properties_text
from tests.fix_spark import SECRET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("brief", [False, True])
def test_a_collector_of_the_users_own_is_the_only_one(*, brief: bool) -> None:
    given = "-Dx=y -XX:+UseG1GC"
    options = jvm_options(given, brief=brief)
    assert options.endswith(given)
    assert options.count("GC") == 1


@pytest.mark.parametrize("brief", [False, True])
def test_without_one_there_is_ours(*, brief: bool) -> None:
    assert jvm_options("-Dx=y", brief=brief).count("GC") == 1


def test_settings_are_written_as_java_reads_them() -> None:
    settings = {"spark.a": "C:\\x = #1\n two", "spark.hadoop.fs.s3a.bucket.a:b.secret.key": " ü!"}
    assert properties_text(settings) == (
        "spark.a=C\\:\\\\x\\ \\=\\ \\#1\\n\\ two\nspark.hadoop.fs.s3a.bucket.a\\:b.secret.key=\\ ü\\!\n"
    )


@pytest.mark.spark
def test_settings_reach_spark_and_no_command_line_shows_them(spark: SparkSession) -> None:
    ((name, value),) = SECRET.items()
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(file.read_bytes().decode(errors="replace"))
        except OSError:  # it ended while we looked
            continue
    ours = [line for line in lines if "org.apache.spark.deploy.SparkSubmit" in line and "-Xmx3g" in line]
    assert ours, "the JVM's own settings come from the same file"
    assert not [line for line in lines if value.split()[1].strip("\\") in line]
    assert spark.sparkContext.getConf().get(name) == value
