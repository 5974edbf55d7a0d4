"""A changed source invalidates documents: they alone stop, and gold rebuilds them once corrected."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.gold.cycle import Gold
from deltasmelt.gold.language.document import load_documents
from deltasmelt.pipelines.health.check import run_check
from deltasmelt.pipelines.health.status import read_status
from deltasmelt.pipelines.settings import Pipeline, load_pipeline
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.settings import SilverSettings
from tests.fix_postgres import drop_database, make_database
from tests.fix_spark import rows_of
from tests.pipelines.whole.test_end_to_end import Flow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(600)]

SCHEMA = """
    CREATE TABLE people (id int PRIMARY KEY, email text, notes text, country int);
    CREATE TABLE countries (id int PRIMARY KEY, name text);
    CREATE TABLE letters (id int PRIMARY KEY, person int);
    CREATE TABLE streets (id int PRIMARY KEY, city text);
    INSERT INTO people VALUES (1, 'one@x', 'n', 1), (2, 'two@x', 'n', 2);
    INSERT INTO countries VALUES (1, 'one'), (2, 'two');
    INSERT INTO letters VALUES (1, 1), (2, 1);
    INSERT INTO streets VALUES (1, 'here');
"""
CHANGES = """
    ALTER TABLE people DROP email;
    ALTER TABLE countries ALTER id TYPE text USING 'c' || id;
    DROP TABLE letters;
    ALTER TABLE streets RENAME TO roads;
    UPDATE people SET notes = 'after';
    UPDATE roads SET city = 'there';
"""
DOCUMENTS = {
    "of_column": "root: public.people\nfields: [id, email]",
    "of_join": (
        "root: public.people\nfields:\n  - id\n"
        "  - {country: {one: public.countries, on: {id: country}, fields: [name]}}"
    ),
    "of_dropped": (
        "root: public.people\nfields:\n  - id\n  - {letters: {count: public.letters, on: {person: id}}}"
    ),
    "of_renamed": "root: public.streets\nfields: [id, city]",
    "of_others": "root: public.people\nfields: [id, notes]",
}
CORRECTED = {
    "of_column": "root: public.people\nfields: [id, notes]",
    "of_join": "root: public.countries\nfields: [id, name]",
    "of_dropped": "root: public.people\nfields: [id]",
    "of_renamed": "root: public.roads\nfields: [id, city]",
}


class Stage:
    """A pipeline folder, and gold as a process starts it."""

    def __init__(self, flow: Flow, folder: Path) -> None:
        self.flow, self.folder = flow, folder
        self.write(DOCUMENTS)
        self.gold = self.start()

    def write(self, documents: dict[str, str]) -> None:
        for name, text in documents.items():
            (self.folder / f"{name}.yml").write_text(f"document: {name}\n{text}\n")

    @property
    def pipeline(self) -> Pipeline:
        dsn = self.flow.source.dsn
        assert dsn is not None
        file = self.folder / "pipeline.yaml"
        file.write_text(
            f"pipeline: e2e\nsource:\n  dsn: {dsn.get_secret_value()}\n  slot: {self.flow.source.slot}\n"
            f"  publication: e2e\nlake: {{path: {self.flow.lake.path}}}\ngold: {{documents: ['*.yml']}}\n"
        )
        return load_pipeline(file)

    def start(self) -> Gold:
        documents = load_documents(sorted(self.folder.glob("*.yml")))
        lake = self.flow.lake
        return Gold(
            self.flow.spark,
            lake,
            documents,
            lambda: silver_catalog(read_relations(lake), SilverSettings()),
            self.flow.control,
        )

    def rows(self, name: str) -> list[tuple[object, ...]]:
        cut = self.flow.control.latest_cut("gold")
        assert cut is not None
        query = (
            f"SELECT * FROM {self.flow.lake.sql('gold', name)} VERSION AS OF {cut.tables[name]} ORDER BY 1"
        )
        return [tuple(row)[:-2] for row in rows_of(self.flow.spark, query)]

    def broken(self) -> dict[str, str]:
        return {error.name: error.code for error in self.flow.control.open_errors()}


@pytest.fixture
def stage(spark: SparkSession, server_dsn: str, tmp_path: Path) -> Iterator[Stage]:
    dsn = make_database(server_dsn)
    flow = Flow(spark, dsn, Lake(path=str(tmp_path / "lake")))
    flow.play([SCHEMA])
    yield Stage(flow, tmp_path)
    flow.connection.close()
    drop_database(server_dsn, dsn)


def test_a_changed_source_stops_its_documents_alone(stage: Stage) -> None:
    stage.flow.carry()
    stage.gold.cycle()
    assert stage.broken() == {}
    assert [finding for finding in run_check(stage.pipeline) if finding.level == "error"] == []

    stage.flow.play([CHANGES])
    errors = [finding for finding in run_check(stage.pipeline) if finding.level == "error"]
    assert {
        Path(finding.subject.rpartition(":")[0]).stem: finding.code for finding in errors
    } == dict.fromkeys(["of_column", "of_join", "of_dropped", "of_renamed"], "document-invalid")
    assert all(finding.remedy for finding in errors)

    stage.flow.carry()
    stage.gold.cycle()
    assert stage.broken() == {
        "of_column": "document-invalid",
        "of_join": "document-invalid",
        "of_dropped": "document-waits",
        "of_renamed": "document-invalid",
    }
    assert stage.rows("of_others") == [(1, "after"), (2, "after")]
    status = {document.name: document for document in read_status(stage.pipeline).documents}
    assert status["of_column"].state == "stopped"
    assert "has no column 'email'" in str(status["of_column"].error)
    assert status["of_others"].state == "streaming"
    assert all(error.remedy for error in stage.flow.control.open_errors())

    stage.write(CORRECTED)
    stage.gold = stage.start()
    stage.gold.cycle()
    assert stage.broken() == {}
    assert stage.rows("of_column") == [(1, "after"), (2, "after")]
    assert stage.rows("of_join") == [("c1", "one"), ("c2", "two")]
    assert stage.rows("of_dropped") == [(1,), (2,)]
    assert stage.rows("of_renamed") == [(1, "there")]
    assert [finding for finding in run_check(stage.pipeline) if finding.level == "error"] == []
