"""A role that may read a partitioned table by its root alone: reported before the copy, with the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.checks.inspect import inspect
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.postgres.connection import connect
from tests.bronze.replaying import assert_bronze_equals_source, execute, fetch, read_all, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.checks.finding import Finding
    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = pytest.mark.postgres


@pytest.fixture
def role(database: str) -> Iterator[str]:
    admin = source_of(database)
    name = f"r_{fetch(admin, 'SELECT current_database()')}"
    execute(
        admin,
        f"CREATE ROLE {name} LOGIN REPLICATION",
        "CREATE SCHEMA shut",
        "CREATE TABLE m (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE m2 PARTITION OF m FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
        "CREATE TABLE shut.m2a PARTITION OF m2 FOR VALUES FROM (10) TO (15)",
        "CREATE TABLE m2b PARTITION OF m2 FOR VALUES FROM (15) TO (20)",
        "INSERT INTO m VALUES (1), (11), (16)",
        f"GRANT SELECT ON m, m1 TO {name}",
        "CREATE PUBLICATION smelt FOR TABLE m WITH (publish_via_partition_root = true)",
    )
    yield name
    execute(admin, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def errors(source: SourceSettings) -> list[Finding]:
    with connect(source) as connection:
        return [finding for finding in inspect(connection, source) if finding.level == "error"]


def test_check_names_partitions_and_sufficient_grants(database: str, role: str, lake_path: str) -> None:
    admin, weak = source_of(database), source_of(database, user=role)
    [finding] = errors(weak)
    assert (finding.code, finding.subject) == ("partition-privilege", "public.m")
    assert "USAGE on schema shut and SELECT on 2 of 3 partitions (public.m2b, shut.m2a)" in finding.message
    read_all(weak, lake_path)
    control = ControlTables(Lake(lake_path))
    assert [(error.name, error.code) for error in control.open_errors()] == [
        ("public.m", "partition-privilege")
    ]
    execute(admin, "INSERT INTO m VALUES (2)", str(finding.remedy).partition(": ")[2])
    assert errors(weak) == []
    read_all(weak, lake_path)
    assert control.open_errors() == []
    assert_bronze_equals_source(admin, lake_path, "public.m")
