"""PostgreSQL's own regression tests run on a source with a running pipeline; then all tables are compared.

The environment variable PG_SRC names a source tree of PostgreSQL of the server's version, with the tests.
Their output is ignored, and many of their statements fail. Every remaining table must equal the silver table,
or have an error with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from deltasmelt.bronze.lake.location import Lake
from tests.bronze.running import Running
from tests.fix_postgres import make_database
from tests.pipelines.whole.test_end_to_end import Flow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

SOURCE: Final = os.environ.get("PG_SRC", "")
_LEFT_OUT: Final = {
    "tablespace",
    "database",
    "largeobject",
    "oidjoins",
    "type_sanity",
    "opr_sanity",
    "sanity_check",
}
"""Files that leave no table, or need features that a server in a single folder lacks."""
_SECONDS: Final = 600
_UNKNOWN: Final = {"table-failed"}
"""Codes of errors without a specific rule: each occurrence is a defect."""

pytestmark = [
    pytest.mark.torture,
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.timeout(6000),
    pytest.mark.skipif(
        not SOURCE, reason="PG_SRC is not set; it names a source tree of PostgreSQL (with src/test/regress)"
    ),
]


def files(regress: Path) -> Iterator[Path]:
    """Return the tests in the order of their schedule."""
    for line in (regress / "parallel_schedule").read_text().splitlines():
        for name in line.removeprefix("test:").split() if line.startswith("test:") else ():
            if name not in _LEFT_OUT and (regress / "sql" / f"{name}.sql").is_file():
                yield regress / "sql" / f"{name}.sql"


def play(psql: str, dsn: str, file: Path, regress: Path) -> None:
    """Run one file and ignore its errors; each statement may run for a minute."""
    subprocess.run(
        [psql, "-X", "-q", "-d", dsn, "-f", str(file)],
        env={
            "PATH": os.environ.get("PATH", ""),
            "PGOPTIONS": "-c statement_timeout=60s -c intervalstyle=postgres_verbose",
            "PGTZ": "America/Los_Angeles",
            "PGDATESTYLE": "Postgres, MDY",
            "PG_ABS_SRCDIR": str(regress),
            "PG_ABS_BUILDDIR": str(regress),
            "PG_LIBDIR": str(regress),
            "PG_DLSUFFIX": ".so",
        },
        cwd=regress,
        check=False,
        capture_output=True,
        timeout=_SECONDS,
    )


def test_postgresql_test_tables_reach_silver_or_have_errors(
    spark: SparkSession, own_server: EmbeddedServer, tmp_path: Path
) -> None:
    regress = Path(SOURCE) / "src" / "test" / "regress"
    every = list(files(regress))
    assert every, f"no tests in {regress}"
    psql = shutil.which("psql", path=str(own_server.bin)) or shutil.which("psql")
    assert psql is not None, "there is no psql"
    dsn = make_database(own_server.dsn())
    flow = Flow(spark, dsn, Lake(path=str(tmp_path / "lake")))
    try:
        flow.play(["CREATE TABLE calm_ (id int PRIMARY KEY)", "INSERT INTO calm_ VALUES (1)"])
        flow.carry()
        with Running(flow.source, str(flow.lake.path), pipeline="e2e") as running:
            for file in every:
                play(psql, dsn, file, regress)
        assert running.error is None
        flow.note_tables("regress")
        assert len(flow.tables) > 1
        cut = flow.carry()
        texts = {str(table): flow.difference(table, cut) for table in flow.tables}
    finally:
        flow.silver.close()
        flow.connection.close()
    errors = {error.name: error for error in flow.control.open_errors()}
    assert {name: text for name, text in texts.items() if text and name not in errors} == {}
    assert {name: error.message for name, error in errors.items() if error.code in _UNKNOWN} == {}
    assert all(error.remedy for error in errors.values())
