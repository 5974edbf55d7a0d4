"""Row filters of the pipeline file on real servers: stable print, no wait for locks, read-only sessions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from deltasmelt.bronze.catalog import publication, row_filters
from deltasmelt.bronze.catalog.harmful_members import harmful_members
from deltasmelt.bronze.catalog.problems import unreadable
from deltasmelt.bronze.catalog.publication import read_publication
from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.reader.carried_tables import _is_carried
from deltasmelt.bronze.rules import OUR_LIST, RuleInDoubtError
from deltasmelt.bronze.setup.publication import ensure_publication
from tests.bronze.replaying import execute, source_of

if TYPE_CHECKING:
    from deltasmelt.bronze.errors import TableError

pytestmark = pytest.mark.postgres

FILTERS = {
    "public.a": "val IN ('a', 'b')",
    "public.b": "id BETWEEN 1 AND 5 AND n = 3 AND (val LIKE 'x%' OR NOT val = 'y')",
    "public.c": "c.id IN (1, 2) AND c.val NOT IN ('a', 'b') -- and a comment",
    "public.d": "val::text = 'a' AND n::bigint BETWEEN SYMMETRIC 1 AND 9 AND num > 1.5 AND at > '2024-01-01'",
}
TABLES = "".join(
    f"CREATE TABLE {name} (id int, val varchar(20), n smallint, num numeric(9, 2), at date, gone int, "
    f"kind mood, PRIMARY KEY (id)); ALTER TABLE {name} REPLICA IDENTITY FULL; ALTER TABLE {name} DROP gone;"
    for name in "abcd"
)


def poll(source: Any, recorded: int = 0, *former: TableName) -> tuple[list[str], dict[str, str]]:
    """Select the tables and change the publication as a catalog poll does; return SQL and errors.

    `former` are tables that had rules.
    """
    refused: list[TableError] = []
    with connect(source) as connection:
        numbers = dict.fromkeys((*source.rules.tables, *former), recorded)
        tables = select_tables(connection, source, recorded=numbers)
        members = [table.table for table in tables if table.problem is None]
        carried = {table.table for table in tables if _is_carried(table)}
        harmful = harmful_members(connection, source.publication) - {table.table for table in tables}
        blocked = [*(table.table for table in tables if table.blocked), *harmful]
        wanted = {table.table: table.wanted for table in tables if table.wanted is not None}
        changed = ensure_publication(
            connection, source, members, refused, without=blocked, wanted=wanted, corrected=carried
        )
    problems = {table.table.name: table.problem.code for table in tables if table.problem}
    return changed, problems | {error.table.name: error.code for error in refused}


def test_the_print_of_a_filter_is_stable(dsn: str) -> None:
    execute(dsn, "CREATE TYPE mood AS ENUM ('ok')", TABLES)
    source = source_of(dsn, where=FILTERS)
    assert poll(source)[1] == {}
    assert poll(source) == ([], {})


def test_a_locked_table_stops_no_other(dsn: str) -> None:
    execute(dsn, "CREATE TYPE mood AS ENUM ('ok')", TABLES)
    source = source_of(dsn, where=FILTERS, timing=Timing(member_lock=0.2, members_lock=0.2))
    with psycopg.connect(dsn) as holder:
        holder.execute("LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        assert poll(source)[1] == {"a": "publication-rules"}
        assert time.monotonic() - began < 9
    assert poll(source)[1] == {}
    row_filters._PRINTED.clear()
    with psycopg.connect(dsn) as holder:
        holder.execute("LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
        assert poll(source) == ([], {})
        publication._PRINTS.clear()
        assert poll(source) == ([], {})
    # A dropped column keeps its number, and the locks of all tables together take a limited time.
    execute(dsn, "DROP PUBLICATION smelt")
    patient = source_of(dsn, where=FILTERS, timing=Timing(member_lock=1.5, members_in_parts=0.1))
    with psycopg.connect(dsn) as holder:
        holder.execute("LOCK TABLE a, b, c, d IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        assert poll(patient)[1] == dict.fromkeys("abcd", "publication-rules")
        assert time.monotonic() - began < 7


def test_a_filter_that_the_server_changes_is_refused(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is rewritten at each poll, whatever the server prints."""
    execute(dsn, "CREATE TYPE mood AS ENUM ('ok')", TABLES)
    source = source_of(dsn, where={"public.a": FILTERS["public.a"]})
    monkeypatch.setattr(row_filters, "_PRINTS", 1)
    assert poll(source)[1] == {"a": "row-filter-invalid"}
    assert poll(source) == ([], {"a": "row-filter-invalid"})
    with connect(source) as connection:
        stored = read_publication(connection, source.publication)
    assert stored is not None
    assert "a" not in {table.name for table in stored.members}


def test_a_read_only_session_checks_filters(dsn: str) -> None:
    execute(dsn, "CREATE TYPE mood AS ENUM ('ok')", TABLES)
    source = source_of(dsn, where=FILTERS)
    with connect(source) as connection:
        connection.execute("SET default_transaction_read_only = on")
        assert [table.problem for table in select_tables(connection, source)] == [None] * 4


def members(dsn: str) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(
            "SELECT tablename, array_length(attnames, 1), rowfilter FROM pg_publication_tables ORDER BY 1"
        ).fetchall()


def test_a_publication_of_others_is_never_narrowed(dsn: str) -> None:
    execute(
        dsn,
        "CREATE TABLE a (id int PRIMARY KEY, x text); CREATE TABLE b (id int PRIMARY KEY, x text NOT NULL)",
        "CREATE PUBLICATION smelt FOR TABLE ONLY a, ONLY b (id) WITH (publish_via_partition_root = true)",
        "ALTER TABLE b DROP CONSTRAINT b_pkey, ADD PRIMARY KEY (x)",
    )
    before = members(dsn)
    source = source_of(dsn, columns={"public.a": {"x": "exclude"}, "public.b": {"x": "exclude"}})
    assert poll(source) == ([], {"a": "publication-rules", "b": "column-rule-key"})
    assert members(dsn) == before
    with connect(source) as connection:
        of_a, of_b = (table.problems[0] for table in select_tables(connection, source))
    assert "deltasmelt did not create the publication" in of_a.message
    assert str(of_a.remedy).endswith("COMMIT; Or give the pipeline its own publication.")
    assert "UPDATEs and DELETEs of the table fail now" in of_b.message
    assert 'ALTER PUBLICATION "smelt" DROP TABLE ONLY "public"."b";' in str(of_b.remedy)


def test_rules_reach_members_without_a_copy(role: tuple[str, str], dsn: str) -> None:
    """A role without SELECT cannot copy the table, and the stream carries its changes nevertheless."""
    name, of_role = role
    execute(dsn, "CREATE TABLE a (id int PRIMARY KEY, x text)", f"ALTER TABLE a OWNER TO {name}")
    execute(
        dsn, f"DO $$ BEGIN EXECUTE 'GRANT CREATE ON DATABASE ' || current_database() || ' TO {name}'; END $$"
    )
    plain = source_of(of_role)
    assert poll(plain)[1] == {}
    execute(dsn, f"REVOKE SELECT ON a FROM {name}")
    source = source_of(of_role, where={"public.a": "id < 5"}, columns={"public.a": {"x": "exclude"}})
    assert poll(source)[1] == {"a": "table-privilege"}
    assert members(dsn) == [("a", 1, "(id < 5)")]
    assert poll(source)[0] == []
    # Another table's owner: the error belongs to the table.
    execute(dsn, "ALTER PUBLICATION smelt DROP TABLE a", f"GRANT SELECT ON a TO {name}")
    with connect(source) as connection:
        tables = select_tables(connection, source)
        execute(dsn, "ALTER TABLE a OWNER TO CURRENT_USER", f"GRANT SELECT ON a TO {name}")
        refused: list[TableError] = []
        wanted = {table.table: table.wanted for table in tables if table.wanted is not None}
        ensure_publication(connection, source, list(wanted), refused, wanted=wanted)
    assert [error.code for error in refused] == ["publication-rules"]


def test_excluded_columns_cause_no_name_problem(dsn: str) -> None:
    execute(
        dsn,
        'CREATE TABLE a (id int PRIMARY KEY, _commit_lsn text, x text, "X" text)',
        "CREATE TABLE b (id int PRIMARY KEY, x text); ALTER TABLE b REPLICA IDENTITY FULL",
    )
    columns = {"public.a": {"_commit_lsn": "exclude", "X": "exclude"}, "public.b": {"*_token": "exclude"}}
    assert poll(source_of(dsn, columns=columns))[1] == {}
    assert members(dsn) == [("a", 2, None), ("b", 2, None)]
    less = {"public.a": {"_commit_lsn": "exclude"}}
    poll(source_of(dsn, columns=less), OUR_LIST)  # the list gets the column
    assert poll(source_of(dsn, columns=less), OUR_LIST)[1] == {"a": "columns-differ-only-in-case"}


def test_a_column_in_doubt_needs_nobody() -> None:
    error = unreadable(TableName("public", "a"), "the shape", RuleInDoubtError("may have been renamed"))
    assert (error.code, str(error.remedy)[:36]) == (
        "column-rule-lost",
        "nothing to do unless a column was re",
    )


def test_harmful_members_leave_our_publication(dsn: str) -> None:
    """A key changes while no reader polls; the table's rules may be right, wrong, or gone with the table."""
    execute(
        dsn,
        "".join(f"CREATE TABLE {name} (id int PRIMARY KEY, x int NOT NULL);" for name in "abcd"),
        "CREATE TABLE p (id int, x int NOT NULL, PRIMARY KEY (id)) PARTITION BY LIST (id); "
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)",
    )
    names = ("public.a", "public.b", "public.d", "public.p")
    source = source_of(dsn, where={"public.c": "id < 5"}, columns={name: {"x": "exclude"} for name in names})
    assert poll(source)[1] == {}
    with connect(source) as connection:
        assert harmful_members(connection, "smelt") == set()
    execute(
        dsn,
        "ALTER TABLE a ADD y int NOT NULL, DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (y)",
        "ALTER TABLE b DROP CONSTRAINT b_pkey, ADD PRIMARY KEY (x)",
        "ALTER TABLE c DROP CONSTRAINT c_pkey, ADD PRIMARY KEY (x)",
        "ALTER TABLE p1 REPLICA IDENTITY FULL",
    )
    with connect(source) as connection:
        harmful = harmful_members(connection, "smelt")
    assert {table.name for table in harmful} == {"a", "b", "c", "p"}
    with pytest.raises(psycopg.errors.InvalidColumnReference):
        execute(dsn, "UPDATE p SET x = 2")
    without_c = source_of(dsn, columns={name: {"x": "exclude"} for name in names}, exclude=["public.c"])
    with psycopg.connect(dsn) as holder:
        holder.execute("SELECT * FROM a")
        problems = poll(without_c, OUR_LIST)[1]
    assert problems == {"b": "column-rule-key", "p": "column-rule-key"}
    assert [name for name, *_ in members(dsn)] == ["a", "d"]
    execute(dsn, *(f"UPDATE {name} SET x = 2" for name in "abcdp"))


def test_a_list_of_former_rules_is_examined(dsn: str) -> None:
    """Without an entry the list stays until it does harm; then a person decides what arrives."""
    execute(dsn, "CREATE TABLE a (id int PRIMARY KEY, secret text)", "CREATE TABLE b (id int PRIMARY KEY)")
    columns: dict[str, dict[str, str]] = {"public.a": {"secret": "exclude"}}
    poll(source_of(dsn, columns=columns))
    none, former = source_of(dsn), TableName("public", "a")
    assert poll(none, OUR_LIST, former) == ([], {})
    execute(dsn, "ALTER TABLE a DROP CONSTRAINT a_pkey, ADD code serial PRIMARY KEY")
    assert poll(none, OUR_LIST, former)[1] == {"a": "publication-column-list"}
    execute(dsn, "UPDATE a SET secret = 'free'")
    assert poll(none, OUR_LIST, former) == ([], {"a": "publication-rules"})
    assert [name for name, *_ in members(dsn)] == ["b"]
    assert poll(source_of(dsn, columns={"public.a": {}}), OUR_LIST)[1] == {}
    assert [name for name, *_ in members(dsn)] == ["a", "b"]


def test_a_new_column_waits_without_an_error(dsn: str) -> None:
    execute(dsn, "CREATE TABLE a (id int PRIMARY KEY, x text, secret text)")
    source = source_of(dsn, columns={"public.a": {"secret": "exclude"}}, timing=Timing(member_lock=0.2))
    assert poll(source)[1] == {}
    execute(dsn, "ALTER TABLE a ADD y text")
    with psycopg.connect(dsn) as holder:
        holder.execute("LOCK TABLE a IN SHARE UPDATE EXCLUSIVE MODE")
        assert poll(source, OUR_LIST) == ([], {})
        # A rule that forbids more cannot wait.
        stricter = source_of(
            dsn, columns={"public.a": {"secret": "exclude", "x": "exclude"}}, timing=source.timing
        )
        assert poll(stricter, OUR_LIST) == ([], {"a": "publication-rules"})
    assert len(poll(source, OUR_LIST)[0]) == 2
    assert members(dsn) == [("a", 3, None)]
    execute(dsn, "ALTER TABLE a DROP CONSTRAINT a_pkey, ADD code int PRIMARY KEY")
    with psycopg.connect(dsn) as holder:
        holder.execute("LOCK TABLE a IN SHARE UPDATE EXCLUSIVE MODE")
        assert poll(source, OUR_LIST) == ([], {"a": "publication-rules"}), "a key cannot wait"
    assert poll(source, OUR_LIST)[1] == {}
