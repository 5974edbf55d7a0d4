"""Jobs that have little to carry are told from those that may have much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from pipelines.runtime.volume import LITTLE, is_little
from pipelines.settings import Pipeline, load_pipeline

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = "host=127.0.0.1 port=1 dbname=nobody connect_timeout=2"


def pipeline(folder: Path, dsn: str, lake: str = "lake") -> Pipeline:
    file = folder / "shop.yml"
    source = f"{{dsn: '{dsn}', slot: shop, publication: shop, tables: [public.*]}}"
    file.write_text(f"pipeline: shop\nsource: {source}\nlake: {{path: '{lake}'}}\n")
    return load_pipeline(file)


def test_a_large_lake_is_much_and_one_that_is_not_there_is_little(tmp_path: Path) -> None:
    small = pipeline(tmp_path, NOBODY)
    assert is_little(small, ["silver", "gold"])
    (tmp_path / "lake" / "bronze" / "changes").mkdir(parents=True)
    file = tmp_path / "lake" / "bronze" / "changes" / "part.parquet"
    for size, little in ((LITTLE, True), (LITTLE + 1, False)):
        with file.open("wb") as sparse:
            sparse.truncate(size)
        assert is_little(small, ["silver", "gold"]) is little


def test_what_an_object_store_or_a_silent_server_holds_is_not_known(tmp_path: Path) -> None:
    assert not is_little(pipeline(tmp_path, NOBODY), ["bronze", "silver"])
    assert not is_little(pipeline(tmp_path, NOBODY, "s3://bucket/lake"), ["silver"])


@pytest.mark.postgres
def test_a_database_counts_where_it_is_read(tmp_path: Path, database: str) -> None:
    read = pipeline(tmp_path, database)
    assert is_little(read, ["bronze", "silver", "gold"])
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE filler (one bytea)")
        connection.execute("ALTER TABLE filler ALTER one SET STORAGE EXTERNAL")
        connection.execute(
            "INSERT INTO filler SELECT decode(repeat('00', %s), 'hex') FROM generate_series(1, %s)",
            [2**20, LITTLE // 2**20],
        )
    assert not is_little(read, ["bronze", "silver", "gold"])
    assert is_little(read, ["silver", "gold"])
