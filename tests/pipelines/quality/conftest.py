"""The shop behind the quality tests: a database with its schema, and the lake of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.bronze.replaying import execute
from tests.fix_postgres import drop_database, make_database
from tests.pipelines.quality_lake import SCHEMA, QualityLake, build_lake

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def source(server_dsn: str) -> Iterator[str]:
    """Return the DSN of a database with the shop's schema."""
    dsn = make_database(server_dsn)
    execute(dsn, SCHEMA)
    yield dsn
    drop_database(server_dsn, dsn)


@pytest.fixture
def lake(source: str, tmp_path: Path) -> QualityLake:
    """Create a lake in which every expectation holds."""
    with psycopg.connect(source, autocommit=True) as connection:
        return build_lake(tmp_path / "shop", source, connection)
