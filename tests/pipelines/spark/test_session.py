"""JVM options at the start of a local session."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.pipelines.commands.context import spark_for
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.launch import jvm_options, properties_text
from deltasmelt.pipelines.spark.session import spark_session
from deltasmelt.pipelines.terminal.jvm_errors import SparkFailure, in_words
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.semantics import legacy
from deltasmelt.silver.spark.tuning import settings
from tests.fix_spark import SECRET
from tests.pipelines.test_cli import make_lake, one_message, pipeline_file, smelt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("brief", [False, True])
def test_collector_chosen_by_user_is_only_collector(*, brief: bool) -> None:
    users_options = "-Dx=y -XX:+UseG1GC"
    options = jvm_options(users_options, brief=brief)
    assert options.endswith(users_options)
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
def test_a_second_call_returns_the_existing_session(spark: SparkSession) -> None:
    """A notebook runs a cell again, or opened a lake before; a process has one Spark context."""
    assert spark_session().sparkContext is spark.sparkContext


@pytest.mark.spark
def test_own_session_writes_timestamps_as_microseconds(spark: SparkSession, tmp_path: Path) -> None:
    """Files that a program writes from a session of `deltasmelt.open` show other readers the year 9999."""
    spark.sql("SELECT TIMESTAMP '9999-12-31 00:00:00' AS at").write.parquet(str(tmp_path / "t"))
    (at,) = pq.read_table(tmp_path / "t")["at"].to_pylist()
    assert at.year == 9999


@pytest.mark.spark
def test_settings_reach_spark_outside_command_line(spark: SparkSession) -> None:
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


@pytest.mark.process
def test_value_rejected_by_spark_is_single_message(tmp_path: Path) -> None:
    """The session survives."""
    file = pipeline_file(
        tmp_path, "host=127.0.0.1 port=1", more="spark: {spark.sql.session.timeZone: Mars}\n"
    )
    make_lake(tmp_path)
    message = one_message(smelt("sql", file, "SELECT 1", folder=tmp_path))
    assert "Spark refuses spark.sql.session.timeZone" in message
    assert "'Mars'" in message
    assert "section `spark`" in message


def test_words_of_spark_outlive_its_jvm(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PySparkException) as failed:
        spark.sql("SELECT raise_error('the cause') FROM range(3)").collect()
    ours = DefiniteError("a table cannot be read", code="no-page")
    ours.__cause__ = failed.value
    failure = in_words(failed.value)
    assert in_words(ours) is ours
    monkeypatch.setattr(SparkContext, "_jvm", None)  # as after the session's end
    with pytest.raises(AssertionError):
        str(failed.value)
    assert "the cause" in str(failure)
    assert "the cause" in "".join(traceback.format_exception(failure))
    assert "the cause" in "".join(traceback.format_exception(ours))
    assert isinstance(failure, SparkFailure)
    assert failure.__traceback__ is failed.value.__traceback__


@pytest.mark.spark
@pytest.mark.usefixtures("active")
def test_borrowed_session_has_own_semantics_temporarily(spark: SparkSession, tmp_path: Path) -> None:
    """A borrowed session has the settings of deltasmelt during a command, and its own afterwards."""
    file = tmp_path / "pipeline.yml"
    file.write_text(
        "pipeline: shop\nsource: {host: db, slot: s, publication: p}\nlake: {path: lake}\n"
        "spark: {spark.sql.session.timeZone: Asia/Tokyo, spark.driver.memory: 9g}\n"
    )
    theirs = {
        "spark.sql.variable.substitute": "true",
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.shuffle.partitions": "77",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
        "spark.sql.legacy.castComplexTypesToString.enabled": "true",
    }
    mistaken = tmp_path / "mistaken.yml"
    mistaken.write_text(file.read_text().replace("Asia/Tokyo", "Mars"))
    with settings(spark, theirs):
        with spark_for(load_pipeline(file), Output()) as lent:
            assert lent is spark
            # What is asked shows as the file says; what is written depends on neither.
            for session, zone in ((lent, "Asia/Tokyo"), (access_of(lent).child(), "UTC")):
                row = session.sql("SELECT '${env:HOME}${x}', current_timezone()").collect()[0]
                assert tuple(row) == ("${env:HOME}${x}", zone)
                assert session.conf.get("spark.sql.ansi.enabled") == "true"
                assert session.conf.get("spark.sql.shuffle.partitions") == "77"
                assert session.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
                assert legacy(session) == {}
        with pytest.raises(ZeroDivisionError), spark_for(load_pipeline(file), Output()):
            raise ZeroDivisionError
        with pytest.raises(ConfigurationError, match=r"Spark refuses spark\.sql\.session\.timeZone"):
            spark_for(load_pipeline(mistaken), Output()).__enter__()
        assert {name: spark.conf.get(name) for name in theirs} == theirs
