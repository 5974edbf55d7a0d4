"""Findings of `smelt check` and `smelt init` about numerics, whose digits a server's rows show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from pydantic import SecretStr

from deltasmelt.bronze.catalog import numeric_values
from deltasmelt.bronze.catalog.numeric_values import NumericValues, count_values
from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.pipelines.health.numeric_digits import better_type, numeric_findings
from deltasmelt.pipelines.init.command import run_init
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.settings import SilverSettings
from tests.bronze.replaying import execute

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.bronze.checks.finding import Finding

pytestmark = pytest.mark.postgres

SCHEMA = """
    CREATE DOMAIN amount AS numeric;
    CREATE DOMAIN cents AS numeric(12,2);
    CREATE TABLE plain (id int PRIMARY KEY, n numeric(38,2), c cents);
    CREATE TABLE fitting (id numeric PRIMARY KEY, total amount, empty numeric, "odd ""Name" numeric(45,3));
    INSERT INTO fitting SELECT i, i / 4.0, NULL, i FROM generate_series(1, 1000) i;
    CREATE TABLE losing (id int PRIMARY KEY, a numeric, b numeric, c numeric(50,30), list numeric[],
      sure numeric(8,2));
    INSERT INTO losing VALUES (1, 1.5, 'NaN', 1.1234567890123456789, '{1}', 'NaN'), (2, 1e25, 2, 0, '{}', 1),
      (3, 'Infinity', 'Infinity', NULL, NULL, 1);
    CREATE TABLE keyed (id numeric PRIMARY KEY);
    INSERT INTO keyed VALUES (1), (1e-19), ('NaN');
    CREATE TABLE parted (id int, n numeric, PRIMARY KEY (id)) PARTITION BY RANGE (id);
    CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (10);
    INSERT INTO parted VALUES (1, 1e30);
"""


def findings(database: str, settings: SilverSettings | None = None) -> dict[str, Finding]:
    source = SourceSettings(dsn=SecretStr(database), slot="s", publication="p", tables=["public.*"])
    with connect(source) as connection:
        tables = select_tables(connection, source, sizes=False)
        listed = list(numeric_findings(connection, tables, settings or SilverSettings()))
        assert connection.execute("SHOW statement_timeout").fetchone() == ("0",)
    assert {finding.code for finding in listed} <= {"numeric-digits"}
    return {finding.subject: finding for finding in listed}


def test_column_types_and_unfit_values_are_reported(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(database, SCHEMA)
    by_table = findings(database)
    assert set(by_table) == {"public.fitting", "public.losing", "public.keyed", "public.parted"}
    fitting, losing, keyed = by_table["public.fitting"], by_table["public.losing"], by_table["public.keyed"]
    assert fitting.level == "info"
    assert fitting.message == (
        "id becomes DECIMAL(38,18), which holds all 1,000 values; total becomes DECIMAL(38,18), which holds "
        'all 1,000 values; empty becomes DECIMAL(38,18); odd "Name becomes DECIMAL(38,3), which holds all '
        "1,000 values"
    )
    assert losing.level == "warning"
    assert losing.message == (
        "a becomes DECIMAL(38,18), which does not hold 2 of 3 values; b becomes DECIMAL(38,18), which does "
        "not hold 2 of 3 values; c becomes DECIMAL(38,18), which does not hold 1 of 2 values; list contains "
        "numerics that may have more digits than a decimal; NULL in silver, with the text in _unrepresentable"
    )
    assert losing.remedy == (
        "silver.types: {public.losing.a: decimal(38,9), public.losing.b: string, "
        "public.losing.c: decimal(38,19)}"
    )
    assert keyed.level == "error"
    assert "does not hold 2 of 3 values; such a key stops the table" in keyed.message
    assert keyed.remedy == "silver.types: {public.keyed.id: decimal(38,19)}"
    assert "does not hold 1 of 1 values" in by_table["public.parted"].message

    # What the pipeline file names is measured, too; text holds everything.
    types = {
        "public.losing.a": "decimal(38,9)",
        "public.losing.b": "string",
        "public.losing.sure": "decimal(3,2)",
    }
    message = findings(database, SilverSettings(types=types))["public.losing"].message
    assert message.startswith("a becomes DECIMAL(38,9), which does not hold 1 of 3 values; c becomes")
    assert "sure becomes DECIMAL(3,2), which does not hold 1 of 3 values" in message

    # A large table is sampled; a table that somebody holds locked is not waited for.
    monkeypatch.setattr(numeric_values, "MOST_ROWS", 100)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("ANALYZE fitting")
        with connection.transaction():
            connection.execute("LOCK TABLE keyed")
            by_table = findings(database)
    assert by_table["public.fitting"].message.endswith(" rows were read")
    assert "could not be counted" in by_table["public.keyed"].message


def test_a_better_type_is_one_with_room(database: str) -> None:
    def better(whole: int, scale: int, values: int = 5) -> str | None:
        return better_type(NumericValues(values, 0, 0, whole, scale))

    assert better(5, 2) == better(0, 0) == better(26, 6) == "decimal(38,9)"
    assert better(5, 7) is better(20, 18) is better(24, 17) is better(5, 2, values=0) is None
    assert better(21, 10) == "decimal(38,10)"
    assert better(10, 28) == "decimal(38,28)"
    assert better(25, 14) is None
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t (id int PRIMARY KEY, n numeric); INSERT INTO t VALUES (1, -1234.500)"
        )
    source = SourceSettings(dsn=SecretStr(database), slot="s", publication="p", tables=["public.*"])
    with connect(source) as connection:
        [table] = select_tables(connection, source, sizes=False)
        counts = count_values(connection, table, {"n": (38, 18)})
    assert counts is not None
    assert counts.complete
    assert counts.columns == {"n": NumericValues(1, 0, 0, 4, 1)}


def test_init_writes_types_that_suit_the_values(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(SCHEMA.encode())
        connection.execute("""CREATE TABLE odd ("${HOME}: no" numeric, id int PRIMARY KEY)""")
        connection.execute("INSERT INTO odd VALUES (1e25, 1)")
    run_init(Output(), dsn=database, out=tmp_path / "pipeline.yml", schemas=())
    text = (tmp_path / "pipeline.yml").read_text()
    assert load_pipeline(tmp_path / "pipeline.yml").silver.types == {
        "public.fitting.id": "decimal(38,9)",
        "public.fitting.total": "decimal(38,9)",
        'public.fitting.odd "Name': "decimal(38,9)",
        "public.losing.a": "decimal(38,9)",
        "public.losing.b": "decimal(38,9)",
        "public.losing.c": "decimal(38,19)",
        "public.keyed.id": "decimal(38,19)",
        "public.parted.n": "decimal(38,0)",
        "public.odd.${HOME}: no": "decimal(38,9)",
    }
    assert "public.fitting.total: decimal(38,9)    # 3 digits before the point, 2 after it\n" in text
    assert "# 2 of 3 values of public.losing.b fit no decimal" in text
