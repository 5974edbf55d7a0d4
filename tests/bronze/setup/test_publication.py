"""Publications on real servers: created, extended, refused, and never changed without permission."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from deltasmelt.bronze.catalog.publication import MADE, NOT_PRINTED, Member, Publication, read_publication
from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import DefiniteError, SmeltError, TableError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.setup import publication
from deltasmelt.bronze.setup.publication import ensure_publication, publication_statements
from tests.bronze.replaying import execute

if TYPE_CHECKING:
    from collections.abc import Iterator

A, B, P, CHILD = (TableName("public", name) for name in ("a", "b", "p", "child"))
WHOLE = frozenset({"insert", "update", "delete", "truncate"})


def source(dsn: str, **values: object) -> SourceSettings:
    return SourceSettings.model_validate({"dsn": dsn, "slot": "smelt", "publication": "smelt_pub", **values})


@pytest.fixture(params=[16, 18])
def dsn(request: pytest.FixtureRequest) -> str:
    """Return a fresh database with tables a, b (with an inheriting child) and p (partitioned)."""
    name = "database" if request.param == 16 else "database18"
    value: str = request.getfixturevalue(name)
    execute(value, """
        CREATE TABLE a (id int PRIMARY KEY);
        CREATE TABLE b (id int PRIMARY KEY);
        CREATE TABLE child (PRIMARY KEY (id)) INHERITS (b);
        CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id);
        CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
    """)  # fmt: skip
    return value


@pytest.fixture
def role(dsn: str) -> Iterator[str]:
    """Yield the DSN of a login role that owns nothing."""
    name = f"r_{conninfo_to_dict(dsn)['dbname']}"
    execute(dsn, f"CREATE ROLE {name} LOGIN REPLICATION")
    yield make_conninfo(dsn, user=name)
    execute(dsn, f"DROP OWNED BY {name}; DROP ROLE {name}")


def published(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT tablename FROM pg_publication_tables WHERE pubname = 'smelt_pub' ORDER BY 1"
        )
        return [row[0] for row in rows]


def test_new_publication_has_exact_tables_through_partition_roots(dsn: str) -> None:
    with connect(source(dsn)) as connection:
        result = ensure_publication(connection, source(dsn), [P, B])
        assert result == [
            (
                'CREATE PUBLICATION "smelt_pub" FOR TABLE ONLY "public"."b", ONLY "public"."p" '
                "WITH (publish_via_partition_root = true);"
            )
        ]
        assert published(dsn) == ["b", "p"]
        assert ensure_publication(connection, source(dsn), [P, B]) == []


def test_source_without_tables_gets_extensible_empty_publication(dsn: str) -> None:
    with connect(source(dsn)) as connection:
        ensure_publication(connection, source(dsn), [])
        assert published(dsn) == []
        ensure_publication(connection, source(dsn), [A])
        assert published(dsn) == ["a"]


def test_missing_table_is_added_and_others_stay(dsn: str) -> None:
    execute(dsn, "CREATE PUBLICATION smelt_pub FOR TABLE a WITH (publish_via_partition_root = true)")
    with connect(source(dsn)) as connection:
        result = ensure_publication(connection, source(dsn), [B, P])
        assert result == ['ALTER PUBLICATION "smelt_pub" ADD TABLE ONLY "public"."b", ONLY "public"."p";']
    assert published(dsn) == ["a", "b", "p"]


def test_missing_operations_and_the_partition_root_are_set(dsn: str) -> None:
    execute(dsn, "CREATE PUBLICATION smelt_pub FOR TABLE a WITH (publish = 'insert')")
    with connect(source(dsn)) as connection:
        ensure_publication(connection, source(dsn), [A])
        publication = read_publication(connection, "smelt_pub")
    assert publication is not None
    assert (publication.operations, publication.via_root) == (WHOLE, True)


def test_tables_published_by_schema_are_not_added_again(dsn: str) -> None:
    """Nor are tables of a publication of all tables."""
    execute(
        dsn,
        "CREATE PUBLICATION smelt_pub FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true)",
    )
    with connect(source(dsn)) as connection:
        assert ensure_publication(connection, source(dsn), [A, B, P]) == []
        execute(dsn, "DROP PUBLICATION smelt_pub")
        execute(dsn, "CREATE PUBLICATION smelt_pub FOR ALL TABLES WITH (publish_via_partition_root = true)")
        assert ensure_publication(connection, source(dsn), [A, B, P]) == []


def test_unmanaged_publication_is_unchanged_and_error_has_sql(dsn: str) -> None:
    settings = source(dsn, manage=False)
    with connect(settings) as connection:
        for tables, code in (([A], "publication-missing"), ([A, B], "publication-incomplete")):
            before = published(dsn)
            with pytest.raises(DefiniteError) as caught:
                ensure_publication(connection, settings, tables)
            assert caught.value.code == code
            assert published(dsn) == before
            execute(dsn, str(caught.value.remedy).partition(": ")[2].partition(" (or")[0])
            assert ensure_publication(connection, settings, tables) == []


def test_unprivileged_role_gets_sql_for_owner(dsn: str, role: str) -> None:
    with connect(source(role)) as connection:
        with pytest.raises(DefiniteError) as caught:
            ensure_publication(connection, source(role), [A, B])
        assert caught.value.code == "publication-privilege"
        assert "CREATE PUBLICATION" in str(caught.value.remedy)
        execute(dsn, "CREATE PUBLICATION smelt_pub FOR TABLE a WITH (publish_via_partition_root = true)")
        with pytest.raises(DefiniteError) as caught:
            ensure_publication(connection, source(role), [A, B])
        assert caught.value.code == "publication-privilege"
        assert 'ADD TABLE ONLY "public"."b";' in str(caught.value.remedy)
        assert ensure_publication(connection, source(role), [A]) == []
    assert published(dsn) == ["a"]


def test_concurrent_starts_do_not_disturb_each_other(dsn: str) -> None:
    settings = source(dsn)
    failures: list[SmeltError] = []
    gate = threading.Barrier(6)

    def start(tables: list[TableName]) -> None:
        with connect(settings) as connection:
            gate.wait()
            try:
                ensure_publication(connection, settings, tables)
            except SmeltError as error:
                failures.append(error)

    selections = ([A], [A, B], [B, P], [P], [A, P], [CHILD])
    threads = [threading.Thread(target=start, args=(tables,)) for tables in selections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert published(dsn) == ["a", "b", "child", "p"]


def test_blocked_tables_leave_only_own_publication_separately(dsn: str, role: str) -> None:
    """A separate statement removes each blocked table, and only from a publication made by deltasmelt."""
    bare, hidden = TableName("public", "bare"), TableName("hidden", "t")
    parts = conninfo_to_dict(role)
    execute(dsn, f"""
        CREATE TABLE bare (a int); CREATE SCHEMA hidden; CREATE TABLE hidden.t (a int);
        GRANT CREATE ON DATABASE {parts["dbname"]} TO {parts["user"]};
        CREATE PUBLICATION smelt_pub FOR TABLE bare, hidden.t
    """)  # fmt: skip
    with connect(source(dsn)) as connection:
        result = ensure_publication(connection, source(dsn), [], without=[bare, hidden])
    assert not any("DROP" in statement for statement in result), "another subscriber may read it"
    assert published(dsn) == ["bare", "t"]
    execute(dsn, f"""
        COMMENT ON PUBLICATION smelt_pub IS '{MADE}: slot s of lake l';
        ALTER PUBLICATION smelt_pub OWNER TO {parts["user"]}
    """)  # fmt: skip
    with connect(source(role)) as connection:
        result = ensure_publication(connection, source(role), [], without=[hidden, bare])
    assert result == ['ALTER PUBLICATION "smelt_pub" DROP TABLE ONLY "public"."bare";']
    assert published(dsn) == ["t"], "the server refuses to look into its schema, which stops no other table"


def test_concurrently_dropped_table_is_transient_error(dsn: str) -> None:
    with connect(source(dsn)) as connection, pytest.raises(TransientError) as caught:
        ensure_publication(
            connection, source(dsn), [A, TableName("public", "gone"), TableName("no", "schema")]
        )
    assert caught.value.code == "concurrent-change"


@pytest.mark.parametrize("seen", [True, False])
def test_a_locked_table_among_many_costs_few_statements(
    dsn: str, monkeypatch: pytest.MonkeyPatch, *, seen: bool
) -> None:
    """Also if the lock is taken after the reader has read the locks."""
    settings = source(dsn).with_timing(Timing(members_lock=0.3, member_lock=0.2))
    if not seen:
        monkeypatch.setattr(publication, "describe_holders", lambda *_: {})
    many = [f"many_{number:02}" for number in range(60)]
    execute(dsn, "".join(f"CREATE TABLE {name} (id int PRIMARY KEY);" for name in many))
    calls: list[int] = []
    change = publication._change

    def counted(connection: Any, source: Any, tables: Any, seconds: float, wanted: Any) -> list[str]:
        calls.append(len(tables))
        return change(connection, source, tables, seconds, wanted)

    monkeypatch.setattr(publication, "_change", counted)
    tables = [TableName("public", name) for name in many]
    locked: list[TableError] = []
    with psycopg.connect(dsn) as second, connect(settings) as connection:
        ensure_publication(connection, settings, [A], [])
        second.execute("LOCK TABLE many_07, many_41 IN SHARE ROW EXCLUSIVE MODE")
        ensure_publication(connection, settings, tables, locked)
        assert sorted(error.table.name for error in locked) == ["many_07", "many_41"]
        assert all(f"backend {second.info.backend_pid}" in error.message for error in locked)
        assert published(dsn) == ["a", *(name for name in many if name not in ("many_07", "many_41"))]
        assert len(calls) < (8 if seen else 30), calls
        second.rollback()
        ensure_publication(connection, settings, tables, locked := [])
    assert (locked, published(dsn)) == ([], ["a", *many])


def test_a_publication_is_read_as_it_is(dsn: str) -> None:
    execute(dsn, """
        CREATE TABLE wide (id int PRIMARY KEY, x int, y int);
        CREATE PUBLICATION smelt_pub FOR TABLE wide (id, y) WHERE (id > 5), a
            WITH (publish = 'insert, truncate');
    """)  # fmt: skip
    with connect(source(dsn)) as connection:
        stored = read_publication(connection, "smelt_pub")
        oids = [oid for (oid,) in connection.execute("SELECT 'public.wide'::regclass::oid")]
        printed = read_publication(connection, "smelt_pub", oids)
        assert read_publication(connection, "another") is None
    assert stored is not None
    assert printed is not None
    assert stored.operations == {"insert", "truncate"}
    assert printed.member(TableName("public", "wide")) == Member(frozenset({1, 3}), "(id > 5)")
    assert stored.member(TableName("public", "wide")) == Member(frozenset({1, 3}), NOT_PRINTED)
    assert stored.member(A) == Member()
    assert stored.member(B) is None


def test_statements_are_quoted_and_in_a_stable_order() -> None:
    tables = [TableName("s", 'odd"name'), TableName("S", "T")]
    insert_only = Publication(
        "my pub", owner="me", owned=True, all_tables=False, operations=frozenset({"insert"}), via_root=False
    )
    assert publication_statements(None, "my pub", tables) == [
        (
            'CREATE PUBLICATION "my pub" FOR TABLE ONLY "S"."T", ONLY "s"."odd""name" '
            "WITH (publish_via_partition_root = true);"
        )
    ]
    assert publication_statements(insert_only, "my pub", tables) == [
        (
            "ALTER PUBLICATION \"my pub\" SET (publish = 'insert, update, delete, truncate', "
            "publish_via_partition_root = true);"
        ),
        'ALTER PUBLICATION "my pub" ADD TABLE ONLY "S"."T", ONLY "s"."odd""name";',
    ]
