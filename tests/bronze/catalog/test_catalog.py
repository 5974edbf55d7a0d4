"""The catalog of real servers: selection, shapes, types, keys, problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from deltasmelt.bronze.catalog.one_snapshot import DamagedError
from deltasmelt.bronze.catalog.publication import MADE
from deltasmelt.bronze.catalog.select import describe_relation, select_tables, skipped_relations
from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.errors import ConfigurationError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.postgres.connection import connect, translated
from deltasmelt.bronze.shapes import BY_KEY, PgType
from tests.bronze.replaying import execute

if TYPE_CHECKING:
    from deltasmelt.bronze.catalog.source_table import SourceTable


def source(dsn: str, **values: object) -> SourceSettings:
    return SourceSettings.model_validate({"dsn": dsn, "slot": "smelt", "publication": "smelt_pub", **values})


def tables(dsn: str, **values: object) -> dict[str, SourceTable]:
    settings = source(dsn, **values)
    with connect(settings) as connection:
        return {str(table.table): table for table in select_tables(connection, settings)}


def problems(table: SourceTable) -> list[str]:
    return [problem.code for problem in table.problems]


def base(name: str, oid: int, typmod: int = -1) -> PgType:
    return PgType(kind="base", name=name, oid=oid, typmod=typmod)


def test_a_table_is_described_as_pgoutput_announces_it(dsn: str) -> None:
    execute(dsn, """
        CREATE TABLE orders (gone int, id bigint, "Total" numeric(12,2) NOT NULL, note varchar(20),
                             double int GENERATED ALWAYS AS (1 + 1) STORED, PRIMARY KEY (id));
        ALTER TABLE orders DROP COLUMN gone;
    """)  # fmt: skip
    relation = tables(dsn)["public.orders"].relation
    described = [
        (column.name, column.attnum, column.type_text, column.not_null, column.in_identity)
        for column in relation.columns
    ]
    assert described == [
        ("id", 2, "bigint", True, True),
        ("Total", 3, "numeric(12,2)", True, False),
        ("note", 4, "character varying(20)", False, False),
    ]
    assert relation.columns[1].type == base("numeric", 1700, ((12 << 16) | 2) + 4)
    assert relation.key == ("id",)
    assert (relation.replica_identity, relation.from_lsn) == ("d", ZERO)


def test_key_columns_follow_index_order(dsn: str) -> None:
    execute(dsn, "CREATE TABLE t (a int, b int, c int, PRIMARY KEY (c, a) INCLUDE (b))")
    assert tables(dsn)["public.t"].relation.key == ("c", "a")


def test_composed_types_are_resolved_to_the_bottom(dsn: str) -> None:
    execute(dsn, """
        CREATE TYPE mood AS ENUM ('sad', 'happy');
        ALTER TYPE mood ADD VALUE 'ok' BEFORE 'happy';
        CREATE DOMAIN amount AS numeric(10,2) CHECK (VALUE > 0);
        CREATE DOMAIN amounts AS amount[];
        CREATE TYPE pair AS (gone int, low amount, moods mood[]);
        ALTER TYPE pair DROP ATTRIBUTE gone;
        CREATE TABLE other (x int, y text);
        CREATE TYPE span AS RANGE (subtype = timestamptz);
        CREATE TABLE t (id int PRIMARY KEY, m mood, a amounts, p pair[], o other, n numeric(5,2)[],
                        neg numeric(3,-2),
                        r span, mr int8multirange, v int2vector, ov oidvector, b box[]);
    """)  # fmt: skip
    trees = {
        column.name: column.type for column in tables(dsn, tables=["public.t"])["public.t"].relation.columns
    }
    assert trees["m"].labels == ("sad", "ok", "happy")
    assert (trees["m"].kind, trees["m"].schema) == ("enum", "public")
    amounts = trees["a"]
    assert amounts.kind == "domain"
    array = amounts.element
    assert array is not None
    assert array.kind == "array"
    assert array.element is not None
    assert array.element.kind == "domain"
    assert array.element.name == "amount"
    assert array.element.element == base("numeric", 1700, ((10 << 16) | 2) + 4)
    pair = trees["p"].element
    assert pair is not None
    assert pair.kind == "composite"
    assert [name for name, _ in pair.fields] == ["low", "moods"]
    assert pair.fields[0][1] == array.element
    assert pair.fields[1][1].element == trees["m"]
    assert trees["o"].fields == (("x", base("int4", 23)), ("y", base("text", 25)))
    assert trees["n"].element == base("numeric", 1700, ((5 << 16) | 2) + 4)
    assert trees["neg"].typmod == ((3 << 16) | (-2 & 0x7FF)) + 4
    assert (trees["r"].kind, trees["r"].element) == ("range", base("timestamptz", 1184))
    assert (trees["mr"].kind, trees["mr"].element) == ("multirange", base("int8", 20))
    assert trees["v"] == base("int2vector", 22)
    assert trees["ov"] == base("oidvector", 30)
    assert (trees["b"].kind, trees["b"].delimiter) == ("array", ";")
    for tree in trees.values():
        assert PgType.from_json(tree.to_json()) == tree


def test_foreign_and_extension_types_carry_their_schema(database18: str) -> None:
    execute(database18, """
        CREATE SCHEMA ext;
        CREATE EXTENSION vector SCHEMA ext;
        CREATE TYPE ext.nothing AS ();
        CREATE TABLE t (id int PRIMARY KEY, n ext.nothing, e ext.vector(3), names name[], c "char", j json[]);
    """)  # fmt: skip
    trees = {column.name: column.type for column in tables(database18)["public.t"].relation.columns}
    assert (trees["n"].schema, trees["n"].fields) == ("ext", ())
    assert (trees["e"].kind, trees["e"].schema, trees["e"].name, trees["e"].typmod) == (
        "base",
        "ext",
        "vector",
        3,
    )
    assert trees["names"].element == base("name", 19)
    assert trees["c"] == base("char", 18)
    assert trees["j"].element == base("json", 114)


def test_patterns_select_by_schema_and_name_case_sensitively(dsn: str) -> None:
    execute(dsn, """
        CREATE SCHEMA sales;
        CREATE TABLE sales.orders (id int PRIMARY KEY);
        CREATE TABLE public.orders (id int PRIMARY KEY);
        CREATE TABLE public."Orders 2" (id int PRIMARY KEY);
        CREATE TABLE public.audit_log (id int PRIMARY KEY);
    """)  # fmt: skip
    assert list(tables(dsn)) == ["public.Orders 2", "public.audit_log", "public.orders"]
    assert list(tables(dsn, tables=["*.orders"])) == ["public.orders", "sales.orders"]
    assert list(tables(dsn, tables=["public.*"], exclude=["public.audit_*", "public.O*"])) == [
        "public.orders"
    ]
    assert list(tables(dsn, tables=["public.nothing"])) == []


def test_partitions_join_root_and_inheritance_children_stay_separate(dsn: str) -> None:
    execute(dsn, """
        CREATE TABLE events (day date, id int, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
        CREATE TABLE events_2024 PARTITION OF events FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')
            PARTITION BY LIST (id);
        CREATE TABLE events_2024_1 PARTITION OF events_2024 FOR VALUES IN (1);
        CREATE TABLE events_2025 PARTITION OF events FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
        INSERT INTO events SELECT date '2025-01-01', g FROM generate_series(1, 1000) g;
        CREATE TABLE parent (id int PRIMARY KEY);
        CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent);
        ANALYZE events;
    """)  # fmt: skip
    selected = tables(dsn)
    assert list(selected) == ["public.child", "public.events", "public.parent"]
    events = selected["public.events"]
    assert events.kind == "p"
    assert events.partitions == (TableName("public", "events_2024_1"), TableName("public", "events_2025"))
    assert events.problem is None
    assert events.rows_estimate == 1000
    assert events.pages >= 4
    assert events.bytes >= events.pages * 8192


def test_relations_without_logged_rows_are_skipped_with_note(dsn: str) -> None:
    execute(dsn, """
        CREATE TABLE t (id int PRIMARY KEY);
        CREATE VIEW v AS SELECT 1 AS one;
        CREATE MATERIALIZED VIEW m AS SELECT 1 AS one;
        CREATE UNLOGGED TABLE u (id int PRIMARY KEY);
        CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id);
        CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
    """)  # fmt: skip
    assert list(tables(dsn)) == ["public.p", "public.t"]
    settings = source(dsn)
    exact = source(dsn, tables=["public.p1"])
    with connect(settings) as connection:
        skipped = {
            skipped_relation.table.name: skipped_relation.reason
            for skipped_relation in skipped_relations(connection, settings)
        }
        assert sorted(skipped) == ["m", "u", "v"]
        assert "unlogged" in skipped["u"]
        assert [skipped_relation.table.name for skipped_relation in skipped_relations(connection, exact)] == [
            "p1"
        ]
        assert select_tables(connection, exact) == []


def test_remedy_for_missing_key_names_usable_index(dsn: str) -> None:
    execute(dsn, """
        CREATE TABLE bare (a int, b int);
        CREATE TABLE has_index (a int NOT NULL, b int);
        CREATE UNIQUE INDEX would_do ON has_index (a);
        CREATE TABLE nullable (a int UNIQUE);
        CREATE TABLE partial (a int NOT NULL);
        CREATE UNIQUE INDEX partial_index ON partial (a) WHERE a > 0;
    """)  # fmt: skip
    selected = tables(dsn)
    for table in selected.values():
        assert problems(table) == ["table-without-key"]
        assert table.relation.key == ()
        assert str(table.table) in str(table.problem)
    remedies = {name: str(table.problems[0].remedy) for name, table in selected.items()}
    assert (
        'ALTER TABLE "public"."has_index" REPLICA IDENTITY USING INDEX "would_do";'
        in remedies["public.has_index"]
    )
    for name in ("public.bare", "public.nullable", "public.partial"):
        assert "ADD PRIMARY KEY" in remedies[name]
        assert "USING INDEX" not in remedies[name]


def test_every_cure_that_is_named_cures(dsn: str) -> None:
    execute(dsn, """
        CREATE TABLE index_only (a int NOT NULL, b int);
        CREATE UNIQUE INDEX its_index ON index_only (a);
        CREATE TABLE nothing (a int PRIMARY KEY);
        ALTER TABLE nothing REPLICA IDENTITY NOTHING;
        CREATE TABLE deferred (a int PRIMARY KEY DEFERRABLE, b int);
        CREATE TABLE overridden (a int PRIMARY KEY, b int NOT NULL, c int NOT NULL);
        CREATE UNIQUE INDEX by_b ON overridden (b, c);
        CREATE TABLE lost_index (a int, b int NOT NULL);
        CREATE UNIQUE INDEX lost ON lost_index (b);
        ALTER TABLE lost_index REPLICA IDENTITY USING INDEX lost;
        DROP INDEX lost;
        ALTER TABLE lost_index ADD PRIMARY KEY (a);
    """)  # fmt: skip
    keys = {"public.overridden": ["b"]}
    before = tables(dsn, keys=keys)
    assert {name: problems(table) for name, table in before.items()} == {
        "public.index_only": ["table-without-key"],
        "public.nothing": ["replica-identity-nothing"],
        "public.deferred": ["replica-identity-missing"],
        "public.overridden": ["key-not-in-identity"],
        "public.lost_index": ["replica-identity-missing"],
    }
    for table in before.values():
        assert table.problem is not None
        assert table.problem.remedy is not None
        execute(dsn, table.problem.remedy.partition(";")[0])
    after = tables(dsn, keys=keys)
    assert [table.problem for table in after.values()] == [None] * 5
    assert after["public.index_only"].relation.key == ("a",)
    assert after["public.overridden"].relation.key == ("b",)
    assert after["public.deferred"].relation.replica_identity == "f"


def test_identity_problems_match_postgresql_refusals(dsn: str) -> None:
    """The purpose of these problems: once the table is published, the application's own UPDATE fails."""
    execute(dsn, """
        CREATE TABLE bare (a int);
        CREATE TABLE nothing (a int PRIMARY KEY);
        ALTER TABLE nothing REPLICA IDENTITY NOTHING;
        CREATE TABLE deferred (a int PRIMARY KEY DEFERRABLE);
        CREATE TABLE fine (a int PRIMARY KEY);
        CREATE TABLE complete (a int);
        ALTER TABLE complete REPLICA IDENTITY FULL;
        INSERT INTO bare VALUES (1);
        INSERT INTO nothing VALUES (1);
        INSERT INTO deferred VALUES (1);
        CREATE PUBLICATION all_of_it FOR ALL TABLES;
    """)  # fmt: skip
    for name, table in tables(dsn).items():
        refused = False
        try:
            execute(dsn, f"UPDATE {name} SET a = 2")
        except psycopg.errors.ObjectNotInPrerequisiteState:
            refused = True
        no_identity = table.relation.replica_identity != "f" and bool(table.problems)
        assert refused == no_identity, name


def test_key_override_replaces_primary_key_if_logged(dsn: str) -> None:
    """The override wins over the primary key only if old rows carry its columns."""
    execute(dsn, """
        CREATE TABLE events (id int PRIMARY KEY, tenant int NOT NULL, code text NOT NULL);
        ALTER TABLE events REPLICA IDENTITY FULL;
        CREATE TABLE bare (a int NOT NULL, b int);
        ALTER TABLE bare REPLICA IDENTITY FULL;
        CREATE TABLE two (a int, b int, c int, PRIMARY KEY (a, b));
    """)  # fmt: skip
    keys = {"public.events": ["tenant", "code"], '"public"."bare"': ["a"], "public.two": ["b"]}
    selected = tables(dsn, keys=keys)
    assert [table.problem for table in selected.values()] == [None] * 3
    assert selected["public.events"].relation.key == ("tenant", "code")
    assert selected["public.bare"].relation.key == ("a",)
    assert selected["public.two"].relation.key == ("b",)
    assert all(column.in_identity for column in selected["public.events"].relation.columns)


def test_a_key_override_must_name_columns_that_exist(dsn: str) -> None:
    execute(dsn, "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (1) STORED)")
    for columns in (["idd"], ["id", "g"]):
        table = tables(dsn, keys={"public.t": columns})["public.t"]
        assert problems(table) == ["key-column-unknown"]
        assert columns[-1] in str(table.problem)
    with pytest.raises(ConfigurationError) as caught:
        tables(dsn, keys={"t": ["id"]})
    assert caught.value.code == "key-table-invalid"


def test_identity_index_replaces_key_missing_in_old_rows(dsn: str) -> None:
    execute(dsn, """
        CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, part int NOT NULL);
        CREATE UNIQUE INDEX by_code ON t (code, part);
        ALTER TABLE t REPLICA IDENTITY USING INDEX by_code;
        CREATE TABLE u (id int PRIMARY KEY, code text NOT NULL);
        CREATE UNIQUE INDEX u_code ON u (code, id);
        ALTER TABLE u REPLICA IDENTITY USING INDEX u_code;
    """)  # fmt: skip
    selected = tables(dsn)
    assert selected["public.t"].relation.key == ("code", "part")
    assert [column.in_identity for column in selected["public.t"].relation.columns] == [False, True, True]
    assert selected["public.u"].relation.key == ("id",)
    assert [table.problem for table in selected.values()] == [None, None]


def test_partition_identity_counts_instead_of_root_identity(dsn: str) -> None:
    execute(dsn, """
        CREATE TABLE ok (a int, PRIMARY KEY (a)) PARTITION BY LIST (a);
        CREATE TABLE ok1 PARTITION OF ok FOR VALUES IN (1);
        ALTER TABLE ok1 REPLICA IDENTITY FULL;
        CREATE TABLE bad (a int, b text, PRIMARY KEY (a)) PARTITION BY LIST (a);
        CREATE TABLE bad1 PARTITION OF bad FOR VALUES IN (1);
        CREATE TABLE bad2 PARTITION OF bad FOR VALUES IN (2);
        ALTER TABLE bad2 REPLICA IDENTITY NOTHING;
        CREATE TABLE keyless (a int NOT NULL) PARTITION BY LIST (a);
        CREATE TABLE keyless1 PARTITION OF keyless FOR VALUES IN (1);
        ALTER TABLE keyless REPLICA IDENTITY FULL;
    """)  # fmt: skip
    selected = tables(dsn, keys={"public.keyless": ["a"]})
    assert selected["public.ok"].problem is None
    assert problems(selected["public.bad"]) == ["replica-identity-nothing"]
    assert "public.bad2" in selected["public.bad"].problems[0].message
    assert problems(selected["public.keyless"]) == ["replica-identity-missing"]
    assert (
        selected["public.keyless"].problems[0].remedy
        == 'ALTER TABLE "public"."keyless1" REPLICA IDENTITY FULL;'
    )


def test_full_root_needs_full_leaves_without_key_index(
    dsn: str,
) -> None:
    """A root with full identity needs full identity of its leaves only if no index guards the key."""
    execute(dsn, """
        CREATE TABLE guarded (a int, part int, v text, PRIMARY KEY (a, part)) PARTITION BY LIST (part);
        ALTER TABLE guarded REPLICA IDENTITY FULL;
        CREATE TABLE guarded1 PARTITION OF guarded FOR VALUES IN (1);
        CREATE TABLE guarded2 PARTITION OF guarded FOR VALUES IN (2);
        ALTER TABLE guarded2 REPLICA IDENTITY FULL;
        CREATE TABLE open (a int NOT NULL, part int, v text) PARTITION BY LIST (part);
        ALTER TABLE open REPLICA IDENTITY FULL;
        CREATE TABLE open1 PARTITION OF open FOR VALUES IN (1);
        CREATE TABLE open2 PARTITION OF open FOR VALUES IN (2);
        CREATE TABLE open3 PARTITION OF open FOR VALUES IN (3);
        ALTER TABLE open1 ADD PRIMARY KEY (a), REPLICA IDENTITY FULL;
        ALTER TABLE open2 ADD PRIMARY KEY (a);
        ALTER TABLE open3 ADD PRIMARY KEY (a);
        CREATE TABLE deferred (a int, part int, PRIMARY KEY (a, part) DEFERRABLE) PARTITION BY LIST (part);
        CREATE TABLE deferred1 PARTITION OF deferred FOR VALUES IN (1);
        ALTER TABLE deferred REPLICA IDENTITY FULL;
    """)  # fmt: skip
    selected = tables(dsn, keys={"public.open": ["a"]})
    guarded = selected["public.guarded"]
    assert guarded.problem is None
    assert guarded.relation.replica_identity == BY_KEY
    assert [column.in_identity for column in guarded.relation.columns] == [True, True, False]
    assert problems(selected["public.open"]) == ["partition-identity"]
    problem = selected["public.open"].problems[0]
    assert "public.open2, public.open3 do not" in problem.message
    assert problems(selected["public.deferred"]) == ["replica-identity-missing"]
    for table in (selected["public.open"], selected["public.deferred"]):
        execute(dsn, str(table.problems[0].remedy).partition(" or ")[0])
    selected = tables(dsn, keys={"public.open": ["a"]})
    assert [selected[f"public.{name}"].problem for name in ("open", "deferred")] == [None, None]
    assert [selected[f"public.{name}"].relation.replica_identity for name in ("open", "deferred")] == [
        "f",
        "f",
    ]
    execute(dsn, "CREATE TABLE open4 PARTITION OF open FOR VALUES IN (4)")
    execute(dsn, "ALTER TABLE open4 ADD PRIMARY KEY (a)")
    assert problems(tables(dsn, keys={"public.open": ["a"]})["public.open"]) == ["partition-identity"]


def test_unlogged_partition_is_problem_of_root(dsn: str) -> None:
    execute(dsn, """
        CREATE TABLE p (a int PRIMARY KEY) PARTITION BY LIST (a);
        CREATE UNLOGGED TABLE p1 PARTITION OF p FOR VALUES IN (1);
    """)  # fmt: skip
    assert problems(tables(dsn)["public.p"]) == ["partition-not-logged"]


def test_case_collisions_and_reserved_columns_are_problems(dsn: str) -> None:
    execute(dsn, """
        CREATE TABLE cases (id int PRIMARY KEY, name text, "Name" text);
        CREATE TABLE ours (id int PRIMARY KEY, "_Commit_LSN" text);
        CREATE TABLE deltas (id int PRIMARY KEY, _change_type text);
    """)  # fmt: skip
    selected = tables(dsn)
    assert problems(selected["public.cases"]) == ["columns-differ-only-in-case"]
    assert problems(selected["public.ours"]) == ["column-name-reserved"]
    assert problems(selected["public.deltas"]) == ["column-name-reserved"]


def test_every_table_of_shared_silver_name_collides(dsn: str) -> None:
    execute(dsn, """
        CREATE SCHEMA a;
        CREATE TABLE a.b (id int PRIMARY KEY);
        CREATE TABLE public.a__b (id int PRIMARY KEY);
        CREATE TABLE public."A__b" (id int PRIMARY KEY);
    """)  # fmt: skip
    selected = tables(dsn, tables=["*.*"])
    assert problems(selected["a.b"]) == problems(selected["public.a__b"]) == ["silver-name-clash"]
    assert "public.a__b" in selected["a.b"].problems[0].message
    assert selected["public.A__b"].problem is None
    assert tables(dsn, tables=["*.*"], exclude=["a.*"])["public.a__b"].problem is None


def test_missing_privileges_are_problems_with_the_grant(dsn: str, role: tuple[str, str]) -> None:
    name, theirs = role
    execute(
        dsn,
        "CREATE SCHEMA shut; CREATE TABLE shut.t (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY)",
    )
    selected = tables(theirs, tables=["*.*"], manage=False)
    assert problems(selected["public.t"]) == ["table-privilege"]
    assert problems(selected["shut.t"]) == ["schema-privilege", "table-privilege"]
    assert not selected["public.t"].owned
    for table in selected.values():
        for problem in table.problems:
            grant = str(problem.remedy).partition(": ")[2]
            assert f'TO "{name}"' in grant
            execute(dsn, grant)
    assert [table.problem for table in tables(theirs, tables=["*.*"], manage=False).values()] == [None, None]


def test_table_without_identity_is_not_to_be_published(dsn: str, role: tuple[str, str]) -> None:
    name, theirs = role
    execute(
        dsn,
        f"CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE bare (id int); GRANT SELECT ON a, bare TO {name}",
    )
    remedies = {
        table_name: str(problem.remedy)
        for table_name, table in tables(theirs).items()
        for problem in table.problems
        if problem.code == "table-not-published"
    }
    warning = "only after the table has a replica identity"
    assert {table_name: warning in remedy for table_name, remedy in remedies.items()} == {
        "public.a": False,
        "public.bare": True,
    }


def test_unpublishable_table_stops_alone(dsn: str, role: tuple[str, str]) -> None:
    name, theirs = role
    execute(dsn, f"""
        CREATE TABLE a (id int PRIMARY KEY);
        CREATE TABLE b (id int PRIMARY KEY);
        CREATE TABLE own (id int PRIMARY KEY);
        ALTER TABLE own OWNER TO {name};
        GRANT SELECT ON a, b TO {name};
    """)  # fmt: skip

    def unpublished(**values: object) -> list[str]:
        selected = tables(theirs, **values)
        assert {code for table in selected.values() for code in problems(table)} <= {"table-not-published"}
        return [table_name for table_name, table in selected.items() if table.problem is not None]

    assert unpublished() == ["public.a", "public.b"]
    assert (
        unpublished(manage=False) == []
    )  # there is no publication: an error of the pipeline, not of its tables
    execute(dsn, "CREATE PUBLICATION smelt_pub FOR TABLE a")
    assert unpublished() == unpublished(manage=False) == ["public.b", "public.own"]
    assert [table.problem for table in tables(dsn).values()] == [None] * 3
    problem = tables(theirs)["public.b"].problem
    assert problem is not None
    execute(dsn, str(problem.remedy).partition(": ")[2].partition(" or ")[0])
    assert unpublished() == ["public.own"]


def test_row_security_is_problem_only_for_affected_role(dsn: str, role: tuple[str, str]) -> None:
    name, theirs = role
    execute(dsn, f"""
        CREATE TABLE t (id int PRIMARY KEY);
        CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id);
        CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
        ALTER TABLE t ENABLE ROW LEVEL SECURITY;
        ALTER TABLE p1 ENABLE ROW LEVEL SECURITY;
        GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name};
    """)  # fmt: skip
    for table in tables(theirs, manage=False).values():
        assert problems(table) == ["row-level-security"]
        assert f'ALTER ROLE "{name}" BYPASSRLS' in str(table.problem)
    assert [table.problem for table in tables(dsn).values()] == [None, None]
    execute(dsn, f"ALTER ROLE {name} BYPASSRLS")
    assert [table.problem for table in tables(theirs, manage=False).values()] == [None, None]


def test_copy_filtered_by_policy_fails(dsn: str, role: tuple[str, str]) -> None:
    name, theirs = role
    execute(dsn, f"CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t ENABLE ROW LEVEL SECURITY; "
             f"GRANT SELECT ON t TO {name}")  # fmt: skip
    with connect(source(theirs)) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("SELECT * FROM public.t")


def test_a_column_list_of_the_publication_holds(dsn: str) -> None:
    execute(dsn, """
        CREATE TABLE t (id int PRIMARY KEY, kept text, left_out text);
        CREATE TABLE without_key (id int PRIMARY KEY, kept text);
        CREATE PUBLICATION smelt_pub FOR TABLE t (id, kept), without_key (kept) WITH (publish = 'insert');
    """)  # fmt: skip
    selected = tables(dsn)
    assert [column.name for column in selected["public.t"].relation.columns] == ["id", "kept"]
    assert selected["public.t"].problem is None
    assert problems(selected["public.without_key"]) == ["publication-column-list"]


def test_publication_with_table_lacking_identity_gets_remedy(dsn: str, role: tuple[str, str]) -> None:
    """Publications of all tables, of a schema, of a user: each printed remedy repairs the writes."""
    execute(dsn, """
        CREATE TABLE t (a int);
        CREATE TABLE p (a int) PARTITION BY LIST (a);
        CREATE TABLE p1 PARTITION OF p DEFAULT;
        GRANT SELECT ON t, p, p1 TO """ + role[0])  # fmt: skip
    comment = f"COMMENT ON PUBLICATION smelt_pub IS '{MADE}: slot s of lake l'"
    cases = (
        ("FOR ALL TABLES", dsn, True, "a single table cannot leave a publication of all tables"),
        (
            "FOR TABLES IN SCHEMA public",
            dsn,
            True,
            ("a single table cannot leave a publication of schema public as a whole"),
        ),
        ("FOR TABLE t, p", dsn, False, "source.manage is false"),
        ("FOR TABLE t, p", role[1], True, f"role {role[0]} does not own the publication"),
        (
            "FOR TABLE t, p",
            dsn,
            True,
            "deltasmelt did not create the publication, so other subscribers may read it",
        ),
        (f"FOR TABLE t, p; {comment}", dsn, True, "until the reader removes the table from the publication"),
        (
            ("FOR TABLE t, p WITH (publish = 'insert')"),
            dsn,
            True,
            ("the reader leaves the table out of the publication"),
        ),
    )
    for target, login, manage, reason in cases:
        execute(dsn, "ALTER TABLE t REPLICA IDENTITY DEFAULT; ALTER TABLE p1 REPLICA IDENTITY DEFAULT")
        execute(dsn, f"DROP PUBLICATION IF EXISTS smelt_pub; CREATE PUBLICATION smelt_pub {target}")
        selected = tables(login, manage=manage)
        for name in ("t", "p"):
            problem = selected[f"public.{name}"].problem
            assert problem is not None
            assert problem.code == "table-without-key"
            assert reason in problem.message
            cure = str(problem.remedy).partition("at once: ")[2].partition(" then: ")[0]
            execute(dsn, cure)
            assert bool(cure) == reason.startswith(("a single table", "source", "role", "delta"))
            if cure:
                execute(dsn, f"UPDATE {name} SET a = 1; DELETE FROM {name}")
    execute(
        dsn, "DROP PUBLICATION smelt_pub; CREATE PUBLICATION smelt_pub FOR TABLE t WITH (publish = 'insert')"
    )
    execute(dsn, comment)
    assert tables(dsn)["public.t"].blocked, "the reader is about to set the operations"
    assert not tables(dsn, manage=False)["public.t"].blocked


def test_row_filter_of_publication_is_problem(dsn: str) -> None:
    execute(
        dsn, "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION smelt_pub FOR TABLE t WHERE (id > 5)"
    )
    table = tables(dsn)["public.t"]
    assert problems(table) == ["publication-row-filter"]
    assert "(id > 5)" in table.problems[0].message
    for statement in str(table.problems[0].remedy).partition(" (")[0].split("; "):
        execute(dsn, statement)
    assert tables(dsn)["public.t"].problem is None


def test_generated_columns_are_omitted_unless_published(database18: str) -> None:
    execute(database18, """
        CREATE TABLE t (id int PRIMARY KEY, s int GENERATED ALWAYS AS (id * 2) STORED,
                        v int GENERATED ALWAYS AS (id * 3) VIRTUAL);
        CREATE TABLE listed (id int PRIMARY KEY, s int GENERATED ALWAYS AS (id * 2) STORED);
    """)  # fmt: skip
    names = [column.name for column in tables(database18)["public.t"].relation.columns]
    assert names == ["id"]
    execute(
        database18,
        "CREATE PUBLICATION smelt_pub FOR TABLE t, listed (id, s) WITH (publish_generated_columns = none)",
    )
    selected = tables(database18)
    assert [column.name for column in selected["public.t"].relation.columns] == ["id"]
    assert [column.name for column in selected["public.listed"].relation.columns] == ["id", "s"]
    execute(database18, "ALTER PUBLICATION smelt_pub SET (publish_generated_columns = stored)")
    selected = tables(database18)
    assert [column.name for column in selected["public.t"].relation.columns] == ["id", "s"]


def test_one_relation_is_described_as_all_are(dsn: str) -> None:
    execute(dsn, """
        CREATE TABLE t (id int PRIMARY KEY, kept text NOT NULL, left_out text);
        CREATE VIEW v AS SELECT 1 AS one;
        CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id);
        CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
        CREATE PUBLICATION smelt_pub FOR TABLE t (id, kept);
    """)  # fmt: skip
    settings = source(dsn)
    with connect(settings) as connection:
        for table in select_tables(connection, settings):
            described = describe_relation(connection, table.relation.relation_id, {}, settings.publication)
            assert described == table.relation
        row = connection.execute("SELECT 'public.t'::regclass::oid, 'public.v'::regclass::oid").fetchone()
        assert row is not None
        whole = describe_relation(connection, row[0], {"public.t": ["kept"]})
        assert whole is not None
        assert [column.name for column in whole.columns] == ["id", "kept", "left_out"]
        assert whole.key == ("kept",)
        assert describe_relation(connection, row[1], {}) is None
        assert describe_relation(connection, 4_000_000_000, {}) is None


def test_locked_table_does_not_block_catalog(dsn: str) -> None:
    execute(
        dsn, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 5000); ANALYZE t"
    )
    with psycopg.connect(dsn) as holder:
        holder.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        locked = tables(dsn)["public.t"]
        holder.rollback()
    assert (locked.rows_estimate, locked.problem) == (5000, None)
    assert locked.pages > 10


def test_types_dropped_during_poll_count_as_concurrent_change(dsn: str) -> None:
    """The poll sees the former columns, but the server reads the present types."""
    settings, failed = source(dsn), []
    execute(dsn, """
        CREATE TYPE mood AS ENUM ('calm');
        CREATE TYPE pair AS (a int, m mood);
        CREATE TABLE t (id int PRIMARY KEY);
        INSERT INTO t VALUES (1);
        ALTER TABLE t ADD m mood DEFAULT 'calm', ADD p pair DEFAULT '(1,calm)', ADD s mood[] DEFAULT '{calm}';
        CREATE TABLE u (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
        CREATE TABLE u_1 PARTITION OF u FOR VALUES FROM (1) TO (2);
        CREATE INDEX ON t (m);
    """)  # fmt: skip
    for change in (
        "ALTER TYPE mood RENAME VALUE 'calm' TO 'quiet'",
        "ALTER TABLE t DROP p; DROP TYPE pair",
        "ALTER TABLE t DROP m, DROP s; DROP TYPE mood",
        "DROP TABLE u",
        "DROP TABLE t",
    ):
        with connect(settings) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute("SELECT FROM pg_class LIMIT 1")
            execute(dsn, change)
            try:
                with translated(settings):
                    select_tables(connection, settings, storage=True)
            except TransientError as error:
                assert error.code == "concurrent-change"  # noqa: PT017 - some changes do no harm
                failed.append(change)
    assert "ALTER TABLE t DROP m, DROP s; DROP TYPE mood" in failed


def test_unprintable_default_is_error_of_single_table(dsn: str) -> None:
    """Each failure has a message and a SQLSTATE; the catalog still describes all undamaged tables.

    Further problems of a damaged table are known, too: t5 has lost its key, so the publication must drop t5.
    """
    execute(dsn, """
        CREATE TYPE mood AS ENUM ('calm', 'odd');
        CREATE TYPE size AS ENUM ('small', 'odd');
    """ + "".join(f"CREATE TABLE t{number} (id int PRIMARY KEY);" for number in range(7)) + """
        CREATE TYPE thing;
        CREATE FUNCTION thing_in(cstring) RETURNS thing LANGUAGE internal STRICT IMMUTABLE AS 'textin';
        CREATE FUNCTION thing_out(thing) RETURNS cstring LANGUAGE internal STRICT IMMUTABLE AS 'textout';
        CREATE TYPE thing (INPUT = thing_in, OUTPUT = thing_out, LIKE = text);
        INSERT INTO t2 VALUES (1);
        INSERT INTO t3 VALUES (1);
        INSERT INTO t5 VALUES (1);
        ALTER TABLE t3 ADD v thing DEFAULT 'x';
        ALTER TABLE t1 ADD m mood DEFAULT 'calm';
        ALTER TABLE t2 ADD m mood DEFAULT 'odd';
        ALTER TABLE t5 ADD s size DEFAULT 'odd';
        DELETE FROM pg_enum WHERE enumlabel = 'odd';
        UPDATE pg_proc SET prolang = (SELECT oid FROM pg_language WHERE lanname = 'c'), probin = '/gone'
        WHERE proname = 'thing_out';
        ALTER TABLE t5 DROP CONSTRAINT t5_pkey;
        CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id);
        CREATE TABLE p1 PARTITION OF p DEFAULT;
        CREATE PUBLICATION smelt_pub
            FOR TABLE t0 WHERE (id > 5), t2, t3, t5, t6 WHERE (id > 6), p WHERE (id > 7)
            WITH (publish_via_partition_root);
        UPDATE pg_publication_rel SET prqual = (SELECT adbin FROM pg_attrdef WHERE adrelid = 't2'::regclass)
        WHERE prrelid IN ('t6'::regclass, 'p'::regclass);
    """)  # fmt: skip
    execute(dsn, f"COMMENT ON PUBLICATION smelt_pub IS '{MADE}: slot s of lake l'")
    selected = tables(dsn)
    assert len(selected) == 8
    damaged = {name: table for name, table in selected.items() if "table-unreadable" in problems(table)}
    assert {name: table.problems[0].message[-7:] for name, table in damaged.items()} == {
        "public.p": " 22P03)", "public.t2": " 22P03)", "public.t3": " 58P01)", "public.t5": " 22P03)",
        "public.t6": " 22P03)",
    }  # fmt: skip
    assert problems(selected["public.t0"]) == ["publication-row-filter"]
    assert problems(selected["public.t6"]) == ["table-unreadable", "publication-row-filter"]
    assert problems(selected["public.t5"]) == ["table-unreadable", "table-without-key"]
    assert [name for name, table in selected.items() if table.blocked] == ["public.t5"]
    assert selected["public.p"].partitions == (TableName("public", "p1"),)
    with connect(source(dsn)) as connection, pytest.raises(DamagedError, match="58P01"):
        describe_relation(connection, selected["public.t3"].relation.relation_id, {})
    assert [column.name for column in selected["public.t1"].relation.columns] == ["id", "m"]
    execute(dsn, "ALTER TABLE t2 DROP m; ALTER TABLE t3 DROP v; ALTER TABLE t5 DROP s, ADD PRIMARY KEY (id)")
    execute(dsn, "DROP PUBLICATION smelt_pub")
    assert not [table for table in tables(dsn).values() if table.problem]


def test_names_of_any_spelling_pass(dsn: str) -> None:
    execute(dsn, """
        CREATE SCHEMA "we""ird.schema";
        CREATE TABLE "we""ird.schema"."ta ble;--" ("co""l" int PRIMARY KEY, "äöü 漢字" text);
    """)  # fmt: skip
    [table] = tables(dsn, tables=["*.*"]).values()
    assert table.table == TableName('we"ird.schema', "ta ble;--")
    assert table.relation.key == ('co"l',)
    assert table.problem is None
