"""Jobs with little to carry are distinguished from jobs with possibly much."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, cast

import psycopg
import pytest

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.runtime import supervisor
from deltasmelt.pipelines.runtime.supervisor import LITTLE, Supervisor, is_little
from deltasmelt.pipelines.settings import Pipeline, load_pipeline
from deltasmelt.pipelines.spark.session_owner import Owned

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Layer

NOBODY = "host=127.0.0.1 port=1 dbname=nobody connect_timeout=2"


def pipeline_of(folder: Path, dsn: str, lake: str = "lake", slot: str = "shop") -> Pipeline:
    file = folder / "shop.yml"
    source = f"{{dsn: '{dsn}', slot: {slot}, publication: shop, tables: [public.*]}}"
    file.write_text(f"pipeline: shop\nsource: {source}\nlake: {{path: '{lake}'}}\n")
    return load_pipeline(file)


def test_large_lake_is_much_and_missing_lake_little(tmp_path: Path) -> None:
    small = pipeline_of(tmp_path, NOBODY)
    assert is_little(small, ["silver", "gold"])
    (tmp_path / "lake" / "bronze" / "changes").mkdir(parents=True)
    file = tmp_path / "lake" / "bronze" / "changes" / "part.parquet"
    for size, little in ((LITTLE, True), (LITTLE + 1, False)):
        with file.open("wb") as sparse:
            sparse.truncate(size)
        assert is_little(small, ["silver", "gold"]) is little


def test_size_of_store_or_silent_server_is_unknown(tmp_path: Path) -> None:
    assert not is_little(pipeline_of(tmp_path, NOBODY), ["bronze", "silver"])
    assert not is_little(pipeline_of(tmp_path, NOBODY, "s3://bucket/lake"), ["silver"])


@pytest.mark.postgres
def test_a_database_counts_where_it_is_read(tmp_path: Path, database: str) -> None:
    name = f"shop_{uuid.uuid4().hex[:8]}"
    read = pipeline_of(tmp_path, database, slot=name)
    every: list[Layer] = ["bronze", "silver", "gold"]
    assert is_little(read, every)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        connection.execute("CREATE TABLE filler (one bytea)")
        connection.execute("ALTER TABLE filler ALTER one SET STORAGE EXTERNAL")
        connection.execute(
            "INSERT INTO filler SELECT decode(repeat('00', %s), 'hex') FROM generate_series(1, %s)",
            [2**20, LITTLE // 2**20],
        )
        assert not is_little(read, every)
        assert is_little(read, ["silver", "gold"])
        connection.execute("DROP TABLE filler")
        assert not is_little(read, every), "the log that the slot holds back is still to be read"
        connection.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [name])
        assert is_little(read, every)


@pytest.mark.parametrize(
    ("until", "little", "brief"),
    [(Lsn(1), True, True), (Lsn(1), False, False), (None, True, False)],
    ids=["little", "much", "continuous"],
)
def test_job_with_little_work_has_brief_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Lsn | None, *, little: bool, brief: bool
) -> None:
    requests: list[object] = []
    monkeypatch.setattr(supervisor, "is_little", lambda *_: little)

    def take(*_: object, brief: bool) -> Owned:
        requests.append(brief)
        return Owned(cast("SparkSession", None))

    monkeypatch.setattr(supervisor, "take", take)
    run = Supervisor(pipeline_of(tmp_path, NOBODY), (), command="smelt test", layers=["silver"], until=until)
    run._start_spark()  # without a JVM
    assert requests == [brief]
