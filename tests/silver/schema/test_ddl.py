"""Test steps between shapes on a model of a table that applies the steps one by one."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from deltasmelt.bronze.errors import TableError
from deltasmelt.bronze.shapes import PgType
from deltasmelt.silver.schema.alter import former_columns, is_due, steps, widens
from deltasmelt.silver.schema.catalog import SilverTable, silver_table
from deltasmelt.silver.schema.ddl import create
from deltasmelt.silver.schema.fields import DeltaColumn, fields_of
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, NUMERIC, TEXT, relation

KEEP, DROP = SilverSettings(), SilverSettings(on_drop_column="drop")
BIGINT = PgType("base", "int8")


def table(*columns: tuple[str, PgType, int]) -> SilverTable:
    shape = relation(
        "t", [(name, type_) for name, type_, _ in columns], [columns[0][0]], relation_id=1,
        attnums=[attnum for _, _, attnum in columns],
    )  # fmt: skip
    return silver_table(shape, KEEP)


def fields(shape: SilverTable) -> list[DeltaColumn]:
    return [DeltaColumn(column.name, column.attnum, column.spark_type) for column in shape.columns]


def apply(statement: str, actual: list[DeltaColumn]) -> list[DeltaColumn]:
    """Apply statements like Delta; a taken or unknown name is an error."""
    by_name = {field.name.lower(): field for field in actual}
    if "CLUSTER BY" in statement or "SET TBLPROPERTIES" in statement:
        return actual
    if match := re.search(r"RENAME COLUMN `(.+)` TO `(.+)`$", statement):
        field = by_name[match[1].lower()]
        assert match[2].lower() not in by_name, statement  # also where it is the column's own
        return [
            DeltaColumn(match[2], column.attnum, column.ddl) if column == field else column
            for column in actual
        ]
    if match := re.search(r"DROP COLUMN `(.+)`$", statement):
        return [column for column in actual if column != by_name[match[1].lower()]]
    if match := re.search(r"ALTER COLUMN `(.+)` TYPE (.+)$", statement):
        field = by_name[match[1].lower()]
        assert widens(field.ddl, match[2])
        return [
            DeltaColumn(column.name, column.attnum, match[2]) if column == field else column
            for column in actual
        ]
    match = re.search(
        r"ADD COLUMNS \(`(.+)` (\S+) COMMENT 'attribute (\d+)' (FIRST|AFTER `(.+)`)\)$", statement
    )
    assert match is not None, statement
    assert match[1].lower() not in by_name, statement
    at = 0 if match[5] is None else [column.name for column in actual].index(match[5]) + 1
    return [*actual[:at], DeltaColumn(match[1], int(match[3]), match[2]), *actual[at:]]


SHAPES = [
    table(("id", INT, 1), ("a", TEXT, 2), ("b", TEXT, 3)),
    table(("id", INT, 1), ("b", TEXT, 2), ("a", TEXT, 3)),  # two names swapped
    table(("id", INT, 1), ("a", TEXT, 3), ("b", TEXT, 4)),  # a dropped, b renamed to it, another b added
    table(("a", INT, 1), ("id", TEXT, 2), ("c", TEXT, 3)),
    table(("id", BIGINT, 1), ("a", TEXT, 2), ("A2", TEXT, 5), ("b", TEXT, 3)),
    table(("id", INT, 1), ("B", TEXT, 3)),  # only the case of a name changed
    table(("ID", INT, 1), ("A", TEXT, 2), ("B", TEXT, 3)),
    table(("Id", INT, 1), ("B", TEXT, 2), ("A", TEXT, 3)),  # names swapped, and their case changed
    replace(table(("id", INT, 1), ("a", TEXT, 2), ("a__2", TEXT, 7), ("b", TEXT, 3)), key=("a", "id")),
]


def clustering(shape: SilverTable) -> list[str]:
    """Return the clustering columns of a shape's table, from its CREATE TABLE."""
    match = re.search(r"CLUSTER BY \((.+)\)", create("t", shape)[0])
    return [] if match is None else re.findall(r"`(.+?)`", match[1])


def clustered_after(statement: str, clustered: list[str], actual: list[DeltaColumn]) -> list[str]:
    """Return the clustering columns after a statement; Delta drops no clustering column."""
    if "CLUSTER BY" in statement:
        names = re.findall(r"`(.+?)`", statement.partition("CLUSTER BY")[2])
        assert set(names) <= {column.name for column in actual}, statement
        return names
    if match := re.search(r"RENAME COLUMN `(.+)` TO `(.+)`$", statement):
        return [match[2] if name == match[1] else name for name in clustered]
    if match := re.search(r"DROP COLUMN `(.+)`$", statement):
        assert match[1] not in clustered, statement
    return clustered


@pytest.mark.parametrize("settings", [KEEP, DROP], ids=["keep", "drop"])
@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(range(len(SHAPES)), 2)))
def test_any_shape_reaches_any_shape_from_any_point(
    before: int, after: int, settings: SilverSettings
) -> None:
    target = SHAPES[after]
    reached = [fields(SHAPES[before])]
    clustered = clustering(SHAPES[before])
    narrowing = before == 4
    for statement in steps("t", target, reached[0], settings, emptied=narrowing):
        clustered = clustered_after(statement, clustered, reached[-1])
        reached.append(apply(statement, reached[-1]))
    for start in reached:  # killed here, the next cycle starts again
        state = start
        if not narrowing:
            assert is_due(target, state, settings) == bool(steps("t", target, state, settings, emptied=False))
        for statement in steps("t", target, state, settings, emptied=narrowing):
            state = apply(statement, state)
        missing = {name for name, _ in former_columns(target, state)}
        assert [field for field in state if field.name not in missing] == fields(target)
        assert not missing or settings is KEEP


MAPPED = "ALTER TABLE t SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
KEYED_BY_TWO = replace(SHAPES[0], key=("id", "a"))


def all_clustered(expected: SilverTable, settings: SilverSettings, *, emptied: bool) -> list[str]:
    """Return the statements from `KEYED_BY_TWO` to a shape, and check that Delta accepts them."""
    clustered, state = clustering(KEYED_BY_TWO), fields(KEYED_BY_TWO)
    statements = steps("t", expected, state, settings, emptied=emptied)
    for statement in statements:
        clustered = clustered_after(statement, clustered, state)
        state = apply(statement, state)
    assert [field for field in state if field in fields(expected)] == fields(expected)
    return statements


def test_a_former_key_column_is_dropped() -> None:
    statements = all_clustered(table(("id", INT, 1), ("b", TEXT, 3)), DROP, emptied=False)
    assert statements == [MAPPED, "ALTER TABLE t CLUSTER BY (`id`)", "ALTER TABLE t DROP COLUMN `a`"]
    # no key column is left, and the new key column does not exist yet
    statements = all_clustered(table(("new", INT, 9), ("b", TEXT, 3)), DROP, emptied=False)
    assert statements[1] == "ALTER TABLE t CLUSTER BY NONE"
    assert statements[-1] == "ALTER TABLE t CLUSTER BY (`new`)"


def test_a_former_key_column_gets_another_type() -> None:
    target = table(("id", INT, 1), ("a", INT, 2), ("b", TEXT, 3))
    statements = all_clustered(target, KEEP, emptied=True)
    assert statements[1:3] == ["ALTER TABLE t CLUSTER BY (`id`)", "ALTER TABLE t DROP COLUMN `a`"]


def test_a_new_key_column_behind_those_with_statistics() -> None:
    wide = [(f"c{number}", TEXT, number + 1) for number in range(40)]
    shape = relation("t", [(name, type_) for name, type_, _ in wide], ["c35"], relation_id=1)
    before = [DeltaColumn(name, attnum, "STRING") for name, _, attnum in wide if name not in ("c35", "c3")]
    before.append(DeltaColumn("gone", 50, "STRING"))
    statements = steps("t", silver_table(shape, KEEP), before, DROP, emptied=False)
    assert [statement for statement in statements if "ADD" not in statement] == [
        MAPPED,
        "ALTER TABLE t CLUSTER BY NONE",
        "ALTER TABLE t DROP COLUMN `gone`",
        "ALTER TABLE t SET TBLPROPERTIES ('delta.dataSkippingStatsColumns' = '`c35`,`_commit_lsn`')",
        "ALTER TABLE t CLUSTER BY (`c35`)",
    ]


def test_foreign_column_makes_room_if_unused() -> None:
    target = table(("id", INT, 1), ("a", TEXT, 2))
    state = [
        DeltaColumn("id", 1, "INT"),
        DeltaColumn("A", None, "STRING"),
        DeltaColumn("a__former", None, "STRING"),
    ]
    renamed = "ALTER TABLE t RENAME COLUMN `A` TO `a__former_2`".replace("a__former_2", "A__former_2")
    assert steps("t", target, state, KEEP, emptied=True)[:2] == [MAPPED, renamed]
    assert steps("t", replace(target, soft=True), state, KEEP, emptied=False)[4] == renamed
    with pytest.raises(TableError, match="has its own column A"):
        steps("t", target, state, KEEP, emptied=False)


def test_case_colliding_names_stop_table_and_heal() -> None:
    with pytest.raises(TableError, match="columns a and A differ only in case"):
        steps(
            "t", table(("id", INT, 1), ("a", TEXT, 2), ("A", TEXT, 3)), fields(SHAPES[0]), KEEP, emptied=False
        )


def test_alternating_type_leaves_differently_named_former_columns() -> None:
    def shape(type_: PgType) -> SilverTable:
        return replace(table(("id", INT, 1), ("a", type_, 2)), soft=True)

    state = [*fields(shape(TEXT)), DeltaColumn("_deleted", None, "BOOLEAN")]
    for type_ in (INT, TEXT, INT, TEXT, INT):
        for statement in steps("t", shape(type_), state, KEEP, emptied=True):
            if statement.endswith("COMMENT ''"):
                name = re.findall(r"`(.+)`", statement)[0]
                state = [replace(column, attnum=None) if column.name == name else column for column in state]
            else:
                state = apply(statement, state)
    former = {column.name for column in state if column.attnum is None}
    assert former == {
        "_deleted", "a__2_string", "a__2_int", "a__2_string_2", "a__2_int_2", "a__2_string_3"
    }  # fmt: skip


DEFAULTED = replace(
    SHAPES[0],
    columns=(
        *SHAPES[0].columns[:2],
        replace(table(("n", NUMERIC, 4)).columns[0], missing="NaN"),
        replace(table(("it's", TEXT, 5)).columns[0], missing="7; rows before it: \n'"),
        SHAPES[0].columns[2],
    ),
)


def filling(statement: str, actual: list[DeltaColumn], filled: dict[str, str]) -> list[DeltaColumn]:
    """Apply statements like Delta, comments included; `filled`: values written to columns, by name."""
    if match := re.search(r"^UPDATE t SET `(.+?)` = (.+)$", statement, re.DOTALL):
        filled[match[1]] = match[2]
        return actual
    if match := re.search(r"ALTER COLUMN `(.+)` COMMENT 'attribute \d+'$", statement):
        return [replace(column, missing=None) if column.name == match[1] else column for column in actual]
    if match := re.search(
        r"COMMENT ('attribute \d+; rows before it: (.+)') (?:FIRST|AFTER `.+`)\)$", statement
    ):
        plain = statement.replace(match[1], re.sub(r"; .*", "'", match[1]))
        added = apply(plain, actual)
        new = next(column for column in added if column not in actual)
        text = match[2].replace("\\n", "\n").replace("\\'", "'")
        return [replace(column, missing=text) if column == new else column for column in added]
    return apply(statement, actual)


def test_older_rows_get_column_default_despite_kills() -> None:
    reached: list[list[DeltaColumn]] = [fields(SHAPES[0])]
    for statement in steps("t", DEFAULTED, reached[0], KEEP, emptied=False):
        reached.append(filling(statement, reached[-1], {}))
    assert {column.missing for state in reached for column in state} == {
        None,
        "NaN",
        "7; rows before it: \n'",
    }
    for at, start in enumerate(reached):
        state, filled = start, dict[str, str]()
        for statement in steps("t", DEFAULTED, state, KEEP, emptied=False):
            state = filling(statement, state, filled)
        assert state == fields(DEFAULTED)
        complete = {column.name for column in start if column.attnum in (4, 5) and column.missing is None}
        assert set(filled) | complete == {"n", "it's"}, f"killed after {at} statements"
        assert steps("t", DEFAULTED, state, KEEP, emptied=False) == []
        for statement in steps("t", DEFAULTED, start, KEEP, emptied=True):
            assert not statement.startswith("UPDATE"), "the table is replaced"


def test_column_added_before_known_default_is_not_overwritten() -> None:
    plain = [replace(field, missing=None) for field in fields(DEFAULTED)]
    assert steps("t", DEFAULTED, plain, KEEP, emptied=False) == []


def test_pending_defaults_round_trip_through_comment() -> None:
    comment = "attribute 5; rows before it: 7; rows before it: \n'"
    schema = {"fields": [{"name": "a", "metadata": {"comment": comment}, "type": "string"}]}
    assert fields_of(schema) == [DeltaColumn("a", 5, "STRING", "7; rows before it: \n'")]


def test_type_losing_stored_values_stops_table() -> None:
    with pytest.raises(TableError, match="column a changed its type from STRING to INT") as caught:
        steps("t", table(("id", INT, 1), ("a", INT, 2)), fields(SHAPES[0]), KEEP, emptied=False)
    assert caught.value.code == "column-retyped"


@pytest.mark.parametrize(
    ("narrow", "wide", "allowed"),
    [
        ("SMALLINT", "INT", True),
        ("INT", "BIGINT", True),
        ("BIGINT", "INT", False),
        ("FLOAT", "DOUBLE", True),
        ("DECIMAL(10,2)", "DECIMAL(12,2)", True),
        ("DECIMAL(10,2)", "DECIMAL(12,4)", True),
        ("DECIMAL(10,2)", "DECIMAL(11,4)", False),
        ("DECIMAL(10,2)", "DECIMAL(12,1)", False),
        ("INT", "STRING", False),
        ("INT", "DOUBLE", True),
        ("BIGINT", "DOUBLE", False),
        ("SMALLINT", "DECIMAL(10,0)", True),
        ("INT", "DECIMAL(12,2)", True),
        ("INT", "DECIMAL(11,2)", False),
        ("BIGINT", "DECIMAL(22,2)", True),
        ("BIGINT", "DECIMAL(19,0)", False),
        ("DATE", "TIMESTAMP_NTZ", True),
        ("DATE", "TIMESTAMP", False),
    ],
)
def test_widening(narrow: str, wide: str, allowed: bool) -> None:  # noqa: FBT001
    assert widens(narrow, wide) is allowed


def test_clustering_columns_get_statistics_wherever_they_stand() -> None:
    wide = [(f"c{number}", TEXT, number + 1) for number in range(40)]
    shape = relation("t", [(name, type_) for name, type_, _ in wide], ["c35"], relation_id=1)
    assert (
        "'delta.dataSkippingStatsColumns' = '`c35`,`_commit_lsn`'"
        in create("t", silver_table(shape, KEEP))[0]
    )
    assert "dataSkippingStatsColumns" not in create("t", SHAPES[0])[0]


def test_table_is_clustered_by_configured_existing_columns() -> None:
    shape = relation(
        "t", [("id", INT), ("flag", PgType("base", "bool")), ("owner", INT)], ["id"], relation_id=1
    )

    def by(*names: str) -> str:
        settings = KEEP.model_copy(update={"cluster": {'"public"."t"': list(names)}})
        return create("t", silver_table(shape, settings))[0].partition("CLUSTER BY ")[2].partition("\n")[0]

    assert by("owner") == "(`owner`)"
    assert by("owner", "gone", "id", "owner") == "(`owner`, `id`)"
    assert by() == by("flag") == by("gone") == "(`id`)", "what has no statistics cannot be"


def test_wide_table_statistics_always_include_key() -> None:
    columns = [(f"c{number}", TEXT) for number in range(40)]

    def made(cluster: str, key: str) -> str:
        settings = KEEP.model_copy(update={"cluster": {"public.t": [cluster]}})
        return create("t", silver_table(relation("t", columns, [key], relation_id=1), settings))[0]

    assert "'delta.dataSkippingStatsColumns' = '`c35`,`c0`,`_commit_lsn`'" in made("c35", "c0")
    assert "'delta.dataSkippingStatsColumns' = '`c0`,`c35`,`_commit_lsn`'" in made("c0", "c35")


def test_recreated_clustering_column_causes_temporary_key_clustering() -> None:
    settings = KEEP.model_copy(update={"cluster": {"public.t": ["owner"]}})
    shape = relation("t", [("id", INT), ("owner", INT)], ["id"], relation_id=1)
    attnums = {"id": 1, "owner": 3}
    columns = tuple(replace(column, attnum=attnums[column.name]) for column in shape.columns)
    before = [DeltaColumn("id", 1, "INT"), DeltaColumn("owner", 2, "STRING")]
    target = silver_table(replace(shape, columns=columns), settings)
    statements = steps("t", target, before, DROP, emptied=True)
    clusterings = [statement for statement in statements if " CLUSTER BY " in statement]
    assert clusterings == ["ALTER TABLE t CLUSTER BY (`id`)", "ALTER TABLE t CLUSTER BY (`owner`)"]


def test_name_with_backtick_disables_change_feed() -> None:
    odd = table(("id", INT, 1), ("back`tick", TEXT, 2))
    assert "'delta.enableChangeDataFeed' = 'false'" in create("t", odd)[0]
    assert "'delta.enableChangeDataFeed' = 'true'" in create("t", SHAPES[0])[0]
    before = [DeltaColumn("id", 1, "INT"), DeltaColumn("tame", 2, "STRING")]
    assert steps("t", odd, before, KEEP, emptied=False) == [
        MAPPED,
        "ALTER TABLE t SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')",
        "ALTER TABLE t RENAME COLUMN `tame` TO `back``tick`",
    ]


def test_a_key_without_statistics_is_not_clustered() -> None:
    flag = relation("t", [("flag", PgType("base", "bool"))], ["flag"], relation_id=1)
    assert "CLUSTER BY" not in create("t", silver_table(flag, KEEP))[0]


@pytest.mark.parametrize("odd", ["path", "key", "column"])
def test_supplementary_character_costs_separate_statement(odd: str) -> None:
    names = {"path": "id", "key": "id", "column": "a", odd: "\U0001f642"}
    target = f"delta.`/{names['path']}`"
    shape = table((names["key"], INT, 1), (names["column"], TEXT, 2))
    first, *further = create(target, shape)
    assert "CLUSTER BY" not in first
    assert "TBLPROPERTIES" in first
    assert further == [f"ALTER TABLE {target} CLUSTER BY (`{names['key']}`)"]
    assert len(create("t", SHAPES[0])) == 1


def test_a_table_may_have_checkpoints_more_often() -> None:
    assert "'delta.checkpointInterval' = '50'" in create("t", SHAPES[0])[0]
    assert "'delta.checkpointInterval' = '10'" in create("t", SHAPES[0], checkpoints=10)[0]


def test_delta_types_are_spelt_as_readings_spell_them() -> None:
    schema = {
        "fields": [
            {
                "name": "r",
                "metadata": {"comment": "attribute 7"},
                "type": {
                    "type": "array",
                    "elementType": {
                        "type": "struct",
                        "fields": [{"name": "x y", "type": "integer"}, {"name": "d", "type": "decimal(6,2)"}],
                    },
                },
            },
            {"name": "_unrepresentable", "type": {"type": "map", "keyType": "string", "valueType": "string"}},
        ]
    }
    assert fields_of(schema) == [
        DeltaColumn("r", 7, "ARRAY<STRUCT<`x y`: INT, `d`: DECIMAL(6,2)>>"),
        DeltaColumn("_unrepresentable", None, "MAP<STRING, STRING>"),
    ]
