"""A sample database in two gigabytes: every array that the foreign keys suggest, built and changed.

Each store and each member of staff has 8,000 rentals and payments, with all referenced rows. Changes to such
documents once ended the JVM, because gold assembled all documents in parallel whatever their size.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.gold.drafting.files import draft_text
from deltasmelt.gold.drafting.propose import propose
from deltasmelt.pipelines.init.catalog import read_catalog
from deltasmelt.pipelines.init.command import run_init
from deltasmelt.pipelines.terminal.output import Output
from tests.bronze.replaying import execute
from tests.patience import wait_for
from tests.pipelines.processes import Command

SAMPLES = Path(__file__).parents[1] / "samples"
pytestmark = [pytest.mark.torture, pytest.mark.spark, pytest.mark.timeout(3000)]


@pytest.fixture
def rentals(database: str, tmp_path: Path) -> Path:
    """Create a pipeline over the sample, with the documents drafted without knowledge of table sizes."""
    play(database, "rentals.sql")
    file = tmp_path / "pipeline.yml"
    run_init(Output(), dsn=database, out=file)
    source = SourceSettings(dsn=SecretStr(database), slot="s", publication="p")
    with connect(source) as connection:
        described = read_catalog(connection, source).described
    for draft in propose(replace(table, rows=0) for table in described).drafts:
        (tmp_path / "documents" / f"{draft.name}.yml").write_text(draft_text(draft))
    with file.open("a") as text:
        text.write("spark: {spark.driver.memory: 2g}\n")
    return file


def play(dsn: str, name: str) -> None:
    execute(dsn, (SAMPLES / name).read_text())


def test_sample_database_fits_into_two_gigabytes(rentals: Path, database: str) -> None:
    folder = rentals.parent
    for changes in ("", "rentals_changes.sql"):
        if changes:
            play(database, changes)
        with Command("run", rentals, "--until-caught-up", folder=folder) as run:
            assert run.wait(1200) == 0, run.text()
            assert "caught up" in run.text()
    play(database, "rentals_changes.sql")
    with Command("run", rentals, "--until-caught-up", folder=folder) as run:
        wait_for(lambda: " silver " in run.text())
        (jvm,) = run.family("org.apache.spark.deploy.SparkSubmit")
        os.kill(jvm, signal.SIGKILL)
        assert run.wait(300) == 1
        text = run.text()
    assert "the JVM of Spark was killed (signal 9)" in text
    assert "more: smelt explain-error spark-died" in text
    assert "Py4J" not in text
    assert "Traceback" not in text
