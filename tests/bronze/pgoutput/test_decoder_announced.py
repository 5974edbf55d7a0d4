"""Test shape versions: announced by the stream, completed from a catalog that may be ahead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from deltasmelt.bronze.builtin_types import builtin_type, format_type
from deltasmelt.bronze.catalog.select import describe_relation
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.pgoutput.decoder import StreamDecoder
from deltasmelt.bronze.pgoutput.messages import AnnouncedColumn, AnnouncedRelation, AnnouncedType
from deltasmelt.bronze.pgoutput.relation_versions import breaks_with, relation_version
from deltasmelt.bronze.shapes import Column, PgType, Relation, same_shape
from tests.bronze import wire
from tests.bronze.record_messages import history, record, schema

if TYPE_CHECKING:
    from collections.abc import Iterable

INT4, INT8, TEXT = builtin_type(23), builtin_type(20), builtin_type(25)
TABLE = TableName("public", "t")


def announced(
    *columns: tuple[str, PgType], key: Iterable[str] = ("id",), identity: str = "d"
) -> AnnouncedRelation:
    listed = tuple(AnnouncedColumn(name, type_.oid, type_.typmod, name in key) for name, type_ in columns)
    return AnnouncedRelation(1, TABLE, identity, listed)


def version(
    *columns: tuple[str, int, PgType], key: tuple[str, ...] = ("id",), identity: str = "d"
) -> Relation:
    listed = tuple(
        Column(name, attnum, type_, format_type(type_), not_null=name in key, in_identity=name in key)
        for name, attnum, type_ in columns
    )
    return Relation(1, TABLE, listed, key, identity, Lsn(5), key_unique=True)


def complete(
    message: AnnouncedRelation,
    catalog: Relation | None = None,
    known: Relation | None = None,
    types: dict[int, AnnouncedType] | None = None,
) -> Relation:
    return relation_version(message, Lsn(9), catalog=catalog, known=known, types=types or {})


def attnums(relation: Relation) -> dict[str, int | None]:
    return {column.name: column.attnum for column in relation.columns}


def test_catalog_with_same_columns_completes_message() -> None:
    domain = PgType("domain", "price", "public", 50000, 655366, element=builtin_type(1700, 655366))
    catalog = version(("id", 1, INT4), ("p", 3, domain))
    message = AnnouncedRelation(
        1, TABLE, "d", (AnnouncedColumn("id", 23, -1, True), AnnouncedColumn("p", 50000, -1, False))
    )
    completed = complete(message, catalog)
    assert completed == replace(catalog, from_lsn=Lsn(9))


def test_readded_column_is_recognized_by_attnum() -> None:
    recorded = version(("id", 1, INT4), ("v", 2, INT4))
    catalog = version(("id", 1, INT4), ("v", 3, TEXT))
    completed = complete(announced(("id", INT4), ("v", TEXT)), catalog, recorded)
    assert attnums(completed) == {"id": 1, "v": 3}
    assert not same_shape(completed, recorded)
    assert same_shape(complete(announced(("id", INT4), ("v", INT4)), catalog, recorded), recorded)


ALIKE = version(("id", 1, INT4), ("a", 2, TEXT), ("b", 3, TEXT))


@pytest.mark.parametrize(
    ("names", "catalog", "numbers"),
    [
        # Swapped: before, after, and in between under names that neither side knows.
        ("id a b", [("id", 1), ("b", 2), ("a", 3)], [1, 2, 3]),
        ("id b a", [("id", 1), ("b", 2), ("a", 3)], [1, 2, 3]),
        ("id tmp b", [("id", 1), ("b", 2), ("a", 3)], [1, 2, 3]),
        # Swapped there and back.
        ("id b a", [("id", 1), ("a", 2), ("b", 3)], [1, 2, 3]),
        # A name passed on to a new column.
        ("id a b", [("id", 1), ("x", 2), ("b", 3), ("a", 4)], [1, 2, 3]),
        ("id x b", [("id", 1), ("x", 2), ("b", 3), ("a", 4)], [1, 2, 3]),
        ("id x b a", [("id", 1), ("x", 2), ("b", 3), ("a", 4)], [1, 2, 3, 4]),
        # Dropped, and another added.
        ("id a b", [("id", 1), ("b", 3), ("x", 4)], [1, 2, 3]),
        ("id b", [("id", 1), ("b", 3), ("x", 4)], [1, 3]),
        ("id b x", [("id", 1), ("b", 3), ("x", 4)], [1, 3, 4]),
        # Another of the same name and type: rows may be from before it or after.
        ("id a b", [("id", 1), ("a", 2), ("b", 4)], [1, 2, None]),
        # Gone under another name.
        ("id a x", [("id", 1), ("a", 2)], [1, 2, None]),
    ],
)
def test_columns_come_in_the_order_of_their_attnums(
    names: str, catalog: list[tuple[str, int]], numbers: list[int | None]
) -> None:
    message = announced(*((name, INT4 if name == "id" else TEXT) for name in names.split()))
    ahead = version(*((name, at, INT4 if name == "id" else TEXT) for name, at in catalog))
    completed = complete(message, ahead, ALIKE)
    assert [column.attnum for column in completed.columns] == numbers


@pytest.mark.parametrize(
    ("columns", "breaks"),
    [
        ([("id", 1, INT4), ("renamed", 2, TEXT), ("b", 3, TEXT), ("new", 4, INT8)], False),
        ([("id", 1, INT4), ("a", 2, builtin_type(1043, 9)), ("b", 3, TEXT)], False),
        ([("id", 1, INT4), ("b", 3, TEXT), ("a", 4, INT4)], False),
        ([("id", 1, INT8), ("a", 2, TEXT), ("b", 3, TEXT)], True),
        ([("id", 1, INT4), ("a", 2, TEXT), ("b", None, TEXT)], True),
    ],
)
def test_shape_breaks_with_predecessor_if_values_may_differ(
    columns: list[tuple[str, int, PgType]],
    breaks: bool,  # noqa: FBT001
) -> None:
    assert breaks_with([ALIKE], version(*columns)) is breaks


def test_key_keeps_columns_swapped_in_later_catalog() -> None:
    recorded = version(("id", 1, INT4), ("nr", 2, INT4), key=("id",), identity="f")
    catalog = version(("nr", 1, INT4), ("id", 2, INT4), key=("nr",), identity="f")
    for names in ("id", "nr"), ("nr", "id"):
        completed = complete(announced(*((name, INT4) for name in names), identity="f"), catalog, recorded)
        assert completed.key == names[:1]


def test_names_swapped_in_later_catalog_swap_no_column() -> None:
    recorded = version(("id", 1, INT4), ("a", 2, INT4), ("b", 3, TEXT))
    catalog = version(("id", 1, INT4), ("b", 2, INT4), ("a", 3, TEXT))
    completed = complete(announced(("id", INT4), ("a", INT4), ("b", TEXT)), catalog, recorded)
    assert same_shape(completed, recorded)


def test_column_dropped_in_later_catalog_keeps_description() -> None:
    recorded = version(("id", 1, INT4), ("v", 2, TEXT))
    catalog = version(("id", 1, INT4))
    assert same_shape(complete(announced(("id", INT4), ("v", TEXT)), catalog, recorded), recorded)


def test_column_widened_later_keeps_old_type_and_attnum() -> None:
    catalog = version(("id", 1, INT4), ("n", 2, INT8))
    completed = complete(announced(("id", INT4), ("n", builtin_type(1700, 786439))), catalog)
    assert attnums(completed) == {"id": 1, "n": 2}
    assert completed.column("n").type_text == "numeric(12,3)"
    assert not completed.column("n").not_null


def test_dropped_table_gets_types_by_oid_and_message() -> None:
    """Types of a dropped table come from their OIDs and from type messages."""
    mood = AnnouncedType(50000, "public", "mood")
    completed = complete(
        announced(("id", INT4), ("m", PgType("enum", "", oid=50000)), ("x", PgType("base", "", oid=60000))),
        types={50000: mood},
    )
    assert attnums(completed) == {"id": None, "m": None, "x": None}
    assert [column.type.name for column in completed.columns] == ["int4", "mood", ""]
    assert completed.key == ("id",)


def test_key_override_applies_while_columns_are_announced() -> None:
    catalog = version(("id", 1, INT4), ("tenant", 2, TEXT), key=("tenant", "id"), identity="f")
    columns = (("id", INT4), ("tenant", TEXT))
    assert complete(announced(*columns, key=("id", "tenant"), identity="f"), catalog).key == ("tenant", "id")
    assert complete(announced(("id", INT4), key=("id",), identity="f"), catalog).key == ()


def test_key_changed_in_later_catalog_keeps_known_key() -> None:
    recorded = version(("id", 1, INT4), ("v", 2, TEXT), key=("id",))
    catalog = version(("id", 1, INT4), ("v", 2, TEXT), key=("v",))
    assert complete(announced(("id", INT4), ("v", TEXT), key=("id",)), catalog, recorded).key == ("id",)
    assert complete(announced(("id", INT4), ("v", TEXT), key=("v",)), catalog, recorded).key == ("v",)


def test_a_shape_announced_again_is_given_out_again() -> None:
    catalog = version(("id", 1, TEXT), ("v", 2, TEXT))
    decoder = StreamDecoder(lambda _id, _lsn: catalog, lambda _table: True, known=[catalog])
    repeated, wider = wire.plain_relation(1, "t", ["id", "v"]), wire.plain_relation(1, "t", ["id", "v", "w"])
    messages = [wire.begin(100), repeated, wire.insert(1, ["1", "a"]), wire.commit(100)]
    (shape,) = decoder.feed(messages).relations
    assert (attnums(shape), shape.place) == ({"id": 1, "v": 2}, (100, 0))
    messages = [wire.begin(200), repeated, wider, wire.insert(1, ["1", "a", "b"]), wire.commit(200)]
    _, shape = decoder.feed(messages).relations
    assert (attnums(shape), shape.place) == ({"id": 1, "v": 2, "w": None}, (200, 0))


NARROW, WIDE = wire.plain_relation(1, "t", ["id", "v"]), wire.plain_relation(1, "t", ["id", "v", "w"])
OTHER = wire.plain_relation(2, "other", ["id"])


@pytest.mark.parametrize("cut", range(11))
def test_shape_begins_after_last_preceding_change(cut: int) -> None:
    messages = [
        wire.begin(100), NARROW, wire.insert(1, ["1", "a"], lsn=10), OTHER, wire.insert(2, ["1"], lsn=20),
        WIDE, wire.insert(1, ["2", "b", "c"], lsn=30), WIDE, wire.insert(1, ["3", "b", "c"], lsn=40),
        NARROW, wire.insert(1, ["4", "a"], lsn=50), wire.commit(100),
        wire.begin(200), OTHER, wire.insert(2, ["1"], lsn=110), WIDE,
        wire.insert(1, ["5", "b", "c"], lsn=120), wire.commit(200),
    ]  # fmt: skip
    decoder = StreamDecoder(lambda _id, _lsn: None, lambda _table: True)
    shapes = [*decoder.feed(messages[:cut]).relations, *decoder.feed(messages[cut:]).relations]
    places = [shape.place for shape in shapes if shape.relation_id == 1]
    assert places == [(100, 0), (100, 20), (100, 20), (100, 40), (200, 0)]


def test_relation_is_selected_under_name_inside_transaction_only() -> None:
    """A relation also counts under a name given only inside a transaction."""
    catalog = version(("id", 1, TEXT), ("v", 2, TEXT))
    elsewhere = replace(catalog, table=TableName("public", "away"), relation_id=3)
    decoder = StreamDecoder(
        lambda oid, _lsn: {1: catalog, 3: elsewhere}[oid],
        lambda table: table == TABLE,
        knows={1, 3}.__contains__,
    )
    away, other_ids = wire.plain_relation(1, "away", ["id", "v"]), [2, 3]
    messages = [wire.begin(100), away, wire.insert(1, ["1", "a"])]
    for other_id in other_ids:
        messages += [wire.plain_relation(other_id, "away", ["id"]), wire.insert(other_id, ["1"])]
    decoded = decoder.feed([*messages, wire.commit(100)])
    assert decoded.changes["table_name"].to_pylist() == ["t"]
    assert [relation.table for relation in decoded.relations] == [TABLE]


def test_renamed_table_has_new_name() -> None:
    before, after = (
        version(("id", 1, INT4)),
        replace(version(("id", 1, INT4)), table=TableName("public", "u")),
    )
    message = announced(("id", INT4))
    assert complete(replace(message, table=after.table), after, before).table == after.table
    assert complete(message, after, before).table == TABLE
    assert complete(replace(message, table=TableName("public", "x")), after, before).table.name == "x"


KEYED_ANEW = version(("id", 1, INT4), ("a", 2, TEXT), ("b", 3, TEXT), key=("b",))


@pytest.mark.parametrize(
    ("former", "relation", "breaks"),
    [
        (ALIKE, KEYED_ANEW, False),
        (ALIKE, replace(KEYED_ANEW, after_lsn=Lsn(1)), True),
        (replace(ALIKE, replica_identity="f"), replace(KEYED_ANEW, after_lsn=Lsn(1)), False),
        (ALIKE, replace(ALIKE, replica_identity="f", after_lsn=Lsn(1)), False),
    ],
)
def test_transaction_rows_are_identified_by_common_old_columns(
    former: Relation,
    relation: Relation,
    breaks: bool,  # noqa: FBT001
) -> None:
    """Columns present in all old tuples of a transaction identify its rows."""
    assert breaks_with([former], relation) is breaks


def test_only_key_counts_in_partitioned_old_tuples() -> None:
    catalog = replace(version(("id", 1, INT4), ("v", 2, TEXT), identity="k"), partitioned=True)
    message = announced(("id", INT4), ("v", TEXT), key=("id", "v"), identity="f")
    completed = complete(message, catalog)
    assert completed == replace(catalog, from_lsn=Lsn(9))
    assert same_shape(complete(message, None, completed), completed), (
        "the table is gone, or the server did not say"
    )
    assert not breaks_with([completed], complete(message, catalog, completed))
    full = complete(message, replace(catalog, replica_identity="f"), completed)
    assert full.replica_identity == "f"
    assert breaks_with([completed], full)
    assert breaks_with([full], completed)


def test_excluded_tables_are_not_described() -> None:
    def describe(_relation_id: int, _lsn: Lsn) -> Relation | None:
        raise AssertionError("described")

    decoder = StreamDecoder(describe, lambda _table: False)
    decoded = decoder.feed([wire.begin(100), wire.plain_relation(1, "t", ["id"]), wire.insert(1, ["1"])])
    assert (decoded.changes.num_rows, decoded.relations) == (0, [])


@pytest.mark.postgres
def test_live_catalog_agrees_with_server_announcements(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(schema().encode())
        messages = record(database, history())
        described: dict[int, Relation] = {}

        def describe(relation_id: int, _lsn: Lsn) -> Relation | None:
            shape = describe_relation(connection, relation_id, {})
            if shape is not None:
                described[relation_id] = shape
            return shape

        relations = StreamDecoder(describe, lambda _table: True).feed(messages).relations
    newest = {relation.relation_id: relation for relation in relations}
    assert len(newest) == len(described) > 15
    for relation_id, relation in newest.items():
        assert same_shape(relation, described[relation_id])
    shapes = [relation for relation in relations if relation.table.name in ("shaped", "reshaped")]
    names = [[column.name for column in relation.columns] for relation in shapes]
    assert names[:4] == [["id", "a", "b"], ["id", "a", "b", "c"], ["id", "z", "b", "c"], ["id", "z", "c"]]


@pytest.mark.postgres
def test_built_in_types_match_server_description(server_dsn: str) -> None:
    modified = {
        1700: [655366, 786439, -1],
        1043: [44],
        1042: [12],
        1114: [3],
        1184: [0],
        1266: [6],
        1560: [8],
    }
    with psycopg.connect(server_dsn) as connection:
        listed = connection.execute(
            """SELECT oid::bigint, typname, typarray::bigint FROM pg_type
               WHERE oid < 10000 AND typtype IN ('b', 'r') AND typcategory <> 'A' AND typarray <> 0"""
        ).fetchall()
        named_types = [(oid, name, array) for oid, name, array in listed if builtin_type(oid).name]
        assert len(named_types) > 40
        for oid, name, array in named_types:
            assert (builtin_type(oid).name, builtin_type(array).name) == (name, f"_{name}")
            for typmod in modified.get(oid, [-1]):
                row = connection.execute(
                    "SELECT format_type(%s, %s), format_type(%s, %s)", [oid, typmod, array, typmod]
                ).fetchone()
                assert row == (
                    format_type(builtin_type(oid, typmod)),
                    format_type(builtin_type(array, typmod)),
                )


@pytest.mark.postgres
@pytest.mark.parametrize("size", [1, 1000])
def test_partition_logging_less_than_root_is_reported_immediately(database: str, size: int) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in (
            "CREATE TABLE parted (id int, part int, v text) PARTITION BY LIST (part)",
            "CREATE TABLE parted1 PARTITION OF parted FOR VALUES IN (1)",
            "CREATE TABLE parted2 (v text, part int, id int)",
            "ALTER TABLE parted ATTACH PARTITION parted2 FOR VALUES IN (2)",
            *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("parted", "parted1", "parted2")),
            "CREATE TABLE other (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE parted, other WITH (publish_via_partition_root)",
        ):
            connection.execute(statement.encode())
        history = [
            "INSERT INTO parted VALUES (1, 1, 'a'), (2, 2, 'b')",
            "TRUNCATE parted, other",
            "INSERT INTO other VALUES (1)",
            "ALTER TABLE parted2 ADD PRIMARY KEY (id), REPLICA IDENTITY DEFAULT",
            "INSERT INTO parted VALUES (1, 1, 'a')",
            "INSERT INTO parted VALUES (2, 2, 'b')",
            "ALTER TABLE parted2 REPLICA IDENTITY FULL",
            "UPDATE parted SET v = 'c'",
        ]
        messages = record(database, history)
        decoder = StreamDecoder(
            lambda one, _lsn: describe_relation(connection, one, {"public.parted": ["id"]}),
            lambda _table: True,
        )
    partials, partitions = [], []
    with psycopg.connect(database, autocommit=True) as connection:
        names: dict[int, str] = dict(connection.execute("SELECT oid, relname FROM pg_class").fetchall())
        for at in range(0, len(messages), size):
            decoded = decoder.feed(messages[at : at + size])
            partials += decoded.partial
            partitions += [(names[part.oid], part.inserts) for part in decoded.partitions]
    start = [bytes(one[25:26]) for one in messages].index(b"B")
    commits = [int.from_bytes(one[26:34]) for one in messages[start:] if bytes(one[25:26]) == b"B"]
    assert partials == [(TableName("public", "parted"), commits[4])]
    once = [("parted1", 2), ("parted2", 1), ("parted1", 1), ("parted2", 1), ("parted2", None)]
    assert partitions == once
