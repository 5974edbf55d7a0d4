"""Test rules for columns as pure text and Arrow: which rule holds, hashes, masks, shapes and names."""

from __future__ import annotations

import hashlib
import hmac
import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pydantic import SecretStr, ValidationError

from deltasmelt.bronze.builtin_types import builtin_type
from deltasmelt.bronze.catalog.publication import NOT_PRINTED, Member, Publication, Wanted
from deltasmelt.bronze.catalog.ruled_tables import rules_without_table
from deltasmelt.bronze.catalog.source_table import SourceTable
from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.reader.table_errors import RepeatedCopies
from deltasmelt.bronze.rules import LONGEST, Rules, TableRules, hashed, key_number, protect
from deltasmelt.bronze.shapes import Column, Relation

if TYPE_CHECKING:
    from deltasmelt.bronze.rules import Action

KEY = b"0123456789abcdef"
TABLE = TableName("public", "customers")
RULES = TableRules(
    (("email", "hash"), ("*_token", "exclude"), ("my_*", "mask"), ("pin_token", "mask")), key=KEY
)


def masked(*texts: str | None) -> list[str | None]:
    cells = pa.array(texts, pa.string())
    values: list[str | None] = protect(cells, np.full(len(cells), 3, np.int8), KEY).to_pylist()
    return values


def test_exact_names_precede_patterns_then_strictest() -> None:
    actions = {
        "email": "hash", "Email": None, "api_token": "exclude", "my_name": "mask", "my_token": "exclude",
        "pin_token": "mask", "city": None,
    }  # fmt: skip
    assert {name: RULES.action(name) for name in actions} == actions
    assert RULES.unknown(["email", "a_token"]) == ["pin_token"]
    assert (RULES.action("API_Token"), RULES.action("EMAIL")) == ("exclude", None)
    assert TableRules((("*_TOKEN", "exclude"),)).action("api_token") == "exclude"
    assert RULES.unmatched(["email", "A_TOKEN"]) == ("my_*",)


def test_hash_is_keyed_sha256_and_null_stays() -> None:
    cells = pa.array(["a@b.c", None, "", "ä\n\t\\"], pa.string())
    values = protect(cells, np.full(4, 2, np.int8), KEY).to_pylist()
    expected = [hmac.new(KEY, text.encode(), hashlib.sha256).hexdigest() for text in ("a@b.c", "", "ä\n\t\\")]
    assert values == [expected[0], None, *expected[1:]]
    assert hashed("a@b.c", KEY) == expected[0] != hashed("a@b.c", KEY + b"x")
    assert key_number(KEY) != key_number(KEY + b"x")


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200])
def test_hash_is_the_standard_s_for_any_key(size: int) -> None:
    """HMAC pads a short key to a block of 64 bytes, and first hashes a longer key."""
    key, texts = bytes(range(size)), ["", "é", "x" * 500]
    values = protect(pa.array(texts), np.full(3, 2, np.int8), key).to_pylist()
    assert values == [hmac.new(key, text.encode(), "sha256").hexdigest() for text in texts]


def test_mask_keeps_shape_and_no_letter() -> None:
    assert masked("+49 171/23-4x", None, "", "Éva Müller", "नमस्ते\n٣", "a" * 200) == [
        "+00 000/00-0x", None, "", "xxx xxxxxx", "xxxxxxx0", "x" * LONGEST,
    ]  # fmt: skip
    every = "".join(map(chr, (*range(1, 0xD800), *range(0xE000, 0x11000))))
    for start in range(0, len(every), LONGEST):
        (text,) = masked(every[start : start + LONGEST])
        assert text is not None
        assert set(text) <= set("x0 !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def test_gate_changes_only_the_cells_of_rules() -> None:
    rng = random.Random(7)
    columns = ["id", "email", "a_token", "my_x", "city"]
    gate = RULES.gate(columns)
    assert gate is not None
    rows = [[rng.choice([None, "v1", "W 2"]) for _ in columns] for _ in range(50)]
    cells = pa.array([cell for row in rows for cell in row], pa.string())
    changed = protect(cells, np.tile(gate.codes, len(rows)), gate.key).to_pylist()
    assert changed == [
        value
        for id_, email, _, my_x, city in rows
        for value in (id_, None if email is None else hashed(email, KEY), *masked(my_x), city)
    ]
    assert RULES.gate(["id", "city"]) is None


def test_shape_has_text_and_no_clear_default() -> None:
    columns = tuple(
        Column(name, number, builtin_type(23), "integer", missing=missing)
        for number, (name, missing) in enumerate(
            [("id", None), ("email", "5"), ("x_token", "5"), ("my_x", "5"), ("city", "5")], 1
        )
    )
    relation = Relation(1, TABLE, columns, key=("id",), replica_identity="d", from_lsn=ZERO)
    shape = RULES.shape(relation)
    assert [(column.name, column.type_text, column.missing) for column in shape.columns] == [
        ("id", "integer", None),
        ("email", "text", hashed("5", KEY)),
        ("my_x", "text", "0"),
        ("city", "integer", "5"),
    ]
    assert TableRules().shape(relation) is relation


def test_a_rename_away_from_a_rule_is_noticed() -> None:
    before = {1: "id", 2: "email", 3: "a_token"}
    assert RULES.lost(before, {1: "no", 2: "mail", 3: "token"}) == [("email", "mail"), ("a_token", "token")]
    assert RULES.lost(before, {2: "b_token", 3: "c_token", 4: "x"}) == []
    assert RULES.lost({2: "email"}, {2: "my_email"}) == [("email", "my_email")], "a mask is weaker"
    rules = Rules.of({"public.customers": {"email": "hash"}}, {}, "k")
    clients = TableName("public", "clients")
    assert rules.renamed([TABLE, clients], clients) == TABLE
    assert rules.renamed([clients], clients) is None
    assert rules.renamed([TABLE, clients], TABLE) is None


def test_no_text_of_rules_reveals_the_key() -> None:
    source = SourceSettings(
        slot="s", publication="p", columns={"public.a": {"x": "hash"}}, hash_key=SecretStr(KEY.decode())
    )
    rules = source.rules
    gate = rules.table(TableName("public", "a")).gate(["x"])
    assert KEY.decode() not in f"{source!r}{rules!r}{gate!r}{rules.tables!r}"
    assert rules.table(TableName("public", "a")).number() == TableRules((("x", "hash"),)).number() > 0


def test_a_list_stays_unless_a_rule_excludes() -> None:
    """Nobody but an exclude, an empty entry or the end of an own exclude decides on a person's list."""
    columns: dict[str, dict[str, Action]] = {
        "public.a": {"x": "exclude"}, "public.b": {"x": "hash"}, "public.c": {}, "public.e": {}
    }  # fmt: skip
    rules = Rules.of(columns, {"public.b": "i > 0", "public.d": " ", "public.e": "i > 0"}, "k")
    a, b, c, d, e = (rules.table(TableName("public", name)) for name in "abcde")
    assert [table.decides_list(0) for table in (a, b, c, d, e)] == [True, False, True, True, True]
    assert [table.decides_filter(0) for table in (a, b, c, d, e)] == [False, True, True, True, True]
    assert b.decides_list(a.number())
    assert a.decides_filter(b.number())
    assert not a.decides_filter(a.number())
    assert (c.number(), d.number()) == (0, 0)


def test_a_person_s_limits_are_never_widened() -> None:
    limited, whole = Member(frozenset({1, 2}), "(i > 0)"), Member()
    narrower = Wanted(1, ("id",), frozenset({1}), printed="(i > 0)")
    assert narrower.widens(limited) is None
    assert narrower.widens(whole) is None
    assert "column list" in str(replace(narrower, attnums=frozenset({1, 3})).widens(limited))
    assert "column list" in str(replace(narrower, attnums=None).widens(limited))
    assert "row filter" in str(replace(narrower, printed=None).widens(limited))
    assert (
        replace(narrower, attnums=None, printed=None, may_extend=True, may_refilter=True).widens(limited)
        is None
    )


def test_a_published_schema_ends_every_filter() -> None:
    """PostgreSQL ignores the filter of a table whose schema is published, too."""
    member = Member(None, "(i > 0)")
    publication = Publication(
        "p", "o", owned=True, all_tables=False, operations=frozenset(), via_root=True, members={TABLE: member}
    )
    assert publication.member(TABLE) == member
    assert replace(publication, schemas=frozenset({"public"})).member(TABLE) == Member()


def test_rules_name_a_selected_or_recorded_table() -> None:
    names: dict[str, dict[str, Action]] = {
        f"public.{name}": {} for name in ("customers", "customer", "Customers", "events_low", "gone")
    }
    relation = Relation(1, TABLE, (), key=("id",), replica_identity="d", from_lsn=ZERO)
    events, leaf = TableName("public", "events"), TableName("public", "events_low")
    tables = [SourceTable(TABLE, relation, "r"), SourceTable(events, relation, "p", partitions=(leaf,))]
    errors = rules_without_table(Rules.of(names, {}, ""), tables, [TableName("public", "gone")])
    assert [(error.table.name, error.code) for error in errors] == [
        (name, "rule-table-unknown") for name in ("Customers", "customer", "events_low")
    ]
    assert "is a partition of public.events" in str(errors[2])
    assert all("write public.customers" in str(error.remedy) for error in errors[:2])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"columns": {"public.a": {"x": "hash"}}}, "add hash_key"),
        ({"columns": {"public.a": {"x": "hash"}}, "hash_key": "short"}, "shorter than 16 bytes"),
        ({"columns": {"a": {"x": "mask"}}}, "expected schema.table"),
        ({"where": {"a": "true"}}, "expected schema.table"),
        ({"columns": {"public.a": {"x": "mask"}, 'public."a"': {}}}, "name the same table"),
        ({"where": {"public.a": "true", '"public".a': "false"}}, "name the same table"),
        ({"columns": {"public.a": {"x": "drop"}}}, "'exclude', 'hash' or 'mask'"),
    ],
)
def test_wrong_rules_are_refused_in_the_file(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SourceSettings.model_validate({"slot": "s", "publication": "p", **wrong})


def test_an_unprinted_filter_of_a_person_stays() -> None:
    wanted = Wanted(1, printed=NOT_PRINTED)
    filters = (NOT_PRINTED, "(id < 5)", None)
    assert [wanted.is_met(Member(row_filter=text)) for text in filters] == [True, True, False]
    assert not Wanted(1, where="id < 5", printed="(id < 5)").is_met(Member(row_filter=NOT_PRINTED))


def test_only_partial_changes_begin_pauses_of_copies() -> None:
    repeated, a = RepeatedCopies(Timing(catalog_poll=0.02)), TableName("public", "a")
    repeated.needed(a)
    repeated.copied([a])
    until = time.monotonic() + 60
    while repeated.resting():
        assert time.monotonic() < until
    repeated.copied([a])  # an added column, or a detached partition
    assert repeated.resting() == []
