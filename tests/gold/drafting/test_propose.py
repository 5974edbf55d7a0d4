"""Documents drafted from foreign keys: their content, their text, and that every document is valid."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltasmelt.bronze.config.yaml_file import parse_yaml
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.shapes import Column, PgType, Relation
from deltasmelt.gold.compile.compiler import compile_tree
from deltasmelt.gold.drafting.files import draft_text, scalar, table_text
from deltasmelt.gold.drafting.foreign_keys import Described, ForeignKey
from deltasmelt.gold.drafting.names import plural, singular, stem
from deltasmelt.gold.drafting.propose import MAX_DEPTH, MAX_JOINS, propose
from deltasmelt.gold.expressions.expressions import column
from deltasmelt.gold.language.document import parse_document
from deltasmelt.gold.tree.nodes import Value
from deltasmelt.gold.tree.resolve import resolve
from deltasmelt.silver.schema.catalog import silver_table
from deltasmelt.silver.settings import SilverSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltasmelt.gold.drafting.draft import Draft, Proposal
    from deltasmelt.gold.tree.nodes import Tree

MONEY = (12 << 16 | 2) + 4


def described(
    name: TableName | str,
    columns: str | dict[str, str],
    key: Sequence[str] = ("id",),
    *keys: ForeignKey,
    unique: Sequence[tuple[str, ...]] = (),
    rows: int = 0,
) -> Described:
    """Return a table from columns like ``id int4!, name text``, with ! for NOT NULL."""
    if isinstance(columns, str):
        columns = dict(word.split() for word in columns.split(", "))
    relation = Relation(
        relation_id=abs(hash(str(name))) % 2**31,
        table=name if isinstance(name, TableName) else TableName("public", name),
        columns=tuple(
            Column(
                column_name,
                place,
                PgType("base", kind.rstrip("!"), typmod=MONEY if kind.startswith("numeric") else -1),
                kind.rstrip("!"),
                not_null=kind.endswith("!") or column_name in key,
            )
            for place, (column_name, kind) in enumerate(columns.items(), 1)
        ),
        key=tuple(key),
        replica_identity="d",
        from_lsn=Lsn(0),
    )
    return Described(silver_table(relation, SilverSettings()), keys, (tuple(key), *unique), rows)


def points(columns: str, target: str, referenced: str = "id", *, owning: bool = False) -> ForeignKey:
    return ForeignKey(
        tuple(columns.split(", ")), TableName("public", target), tuple(referenced.split(", ")), owning
    )


CUSTOMERS = described(
    "customers", "id int8, email text!, country_id int2, photo bytea, deleted_at timestamptz", ("id",),
    points("country_id", "countries"), rows=2000,
)  # fmt: skip
COUNTRIES = described("countries", "id int2, code text!, name text!, vat numeric!", rows=12)
ORDERS = described(
    "orders",
    "id int8, customer_id int8!, total numeric",
    ("id",),
    points("customer_id", "customers"),
    rows=4000,
)
ITEMS = described(
    "order_items", "order_id int8, line int2, product_id int4!, qty int4", ("order_id", "line"),
    points("order_id", "orders", owning=True), points("product_id", "products"), rows=8000,
)  # fmt: skip
PRODUCTS = described("products", "id int4, sku text, name text, price numeric, weight float8", rows=250)
TAGS = described("tags", "id int4, name text", rows=9)
CUSTOMER_TAGS = described(
    "customer_tags", "customer_id int8, tag_id int4, added_at timestamptz, name text",
    ("customer_id", "tag_id"), points("customer_id", "customers"), points("tag_id", "tags"), rows=5000,
)  # fmt: skip
SHOP = (CUSTOMERS, COUNTRIES, ORDERS, ITEMS, PRODUCTS, TAGS, CUSTOMER_TAGS)


def texts(*tables: Described) -> dict[str, str]:
    """Return drafted files by their document's name, after a check that each is valid."""
    by_name = {}
    for draft in propose(tables).drafts:
        tree_of(draft, tables)
        by_name[draft.name] = draft_text(draft)
    return by_name


def tree_of(draft: Draft, tables: Iterable[Described]) -> Tree:
    """Return the draft as resolved by gold from its file."""
    return _tree_of_text(draft_text(draft), tables)


def _with_arrays(text: str) -> str:
    """Return a drafted text with its commented arrays, like a user who removes the comment signs."""
    lines, within = [], False
    for line in text.split("\n"):
        bare = re.match(r"( *)# (.*)", line)
        if bare is not None and (within or "so the rows are counted" in line):
            lines.append("" if not within else bare[1] + bare[2])
            within = True
        else:
            lines.append(line)
            within = False
    return "\n".join(lines)


def _tree_of_text(text: str, tables: Iterable[Described]) -> Tree:
    document = parse_document(parse_yaml(text, Path("draft.yml")))
    tree, problems = resolve(document, {table.name: table.table for table in tables})
    assert problems == []
    assert tree is not None
    compile_tree(tree, str)
    return tree


def why(proposal: Proposal, name: str) -> str:
    return next(entry.reason for entry in proposal.left_out if entry.table.name == name)


def test_shop_draft_reads_like_handwritten_documents() -> None:
    drafted = texts(*SHOP)
    assert list(drafted) == ["customer", "order"]
    assert (
        drafted["customer"]
        == """\
# One document per row of public.customers, with its country, orders and tags.
# Drafted by `smelt init` from foreign keys: edit as needed, see docs/gold/language.md.
document: customer
root: public.customers
# where: "deleted_at is null"    # then rows marked as deleted have no document
fields:
  - id
  - email
  - country_id
  - deleted_at
  # - photo    # bytea, left out
  - country: {one: public.countries, on: {id: country_id}, fields: [code, name, vat]}
  - orders:
      many: public.orders
      on: {customer_id: id}
      fields:
        - id
        - total
        - items:
            many: public.order_items
            on: {order_id: id}
            fields:
              - line
              - product_id
              - qty
              - product:
                  one: public.products
                  on: {id: product_id}
                  fields: [sku, name, price, weight]
  - tags:    # through customer_tags
      many: public.tags
      through:
        table: public.customer_tags
        on: {customer_id: id}
        to: {tag_id: id}
        fields:
          - added_at
          - customer_tag_name: {column: name}
      fields: [id, name]
"""
    )
    assert "customer: {one: public.customers" not in drafted["order"]
    assert "  - customer:\n      one: public.customers\n" in drafted["order"]


def test_every_undrafted_table_is_named_with_reason() -> None:
    """The list also names the documents that contain the table."""
    proposal = propose(SHOP)
    assert {entry.table.name: entry.inside for entry in proposal.left_out} == {
        "countries": ("customer", "order"),
        "customer_tags": ("customer",),
        "order_items": ("customer", "order"),
        "products": ("customer", "order"),
        "tags": ("customer",),
    }
    assert why(proposal, "countries") == "a lookup table"
    assert why(proposal, "products") == "a lookup table"
    assert why(proposal, "customer_tags") == "links public.customers and public.tags"
    assert why(proposal, "order_items") == "no table depends on this table"


def test_parent_table_is_drafted_among_lookups() -> None:
    """If all tables look like lookups, the table with children is drafted all the same."""
    customers = described("customers", "id int4, email text")
    orders = described("orders", "id int4, customer_id int4", ("id",), points("customer_id", "customers"))
    assert list(texts(customers, orders)) == ["customer"]


def test_used_table_is_drafted_if_all_are_childless() -> None:
    """If no table has children, a referenced table is drafted."""
    addresses = described("addresses", "id int4, city text")
    orders = described("orders", "id int4, from_id int4, to_id int4", ("id",),
                       points("from_id", "addresses"), points("to_id", "addresses"))  # fmt: skip
    assert list(texts(addresses, orders)) == ["address"]


def test_tables_without_foreign_keys_give_no_documents() -> None:
    proposal = propose([TAGS, described("notes", "id int4, text text")])
    assert proposal.drafts == ()
    assert why(proposal, "notes") == "no foreign key leads to this table or from it"


def test_richest_few_documents_are_drafted_first() -> None:
    tables = []
    for number in range(8):
        tables.append(described(f"t{number}", "id int4, a text, b text, c text, d text"))
        tables += [
            described(f"c{number}_{index}", "id int4, p int4", ("id",), points("p", f"t{number}"))
            for index in range(number + 1)
        ]
    proposal = propose(tables)
    assert [draft.root.name for draft in proposal.drafts] == ["t7", "t6", "t5", "t4", "t3"]
    assert why(proposal, "t2") == "fewer tables depend on this table than on the drafted tables"


def test_customers_are_drafted_before_their_addresses() -> None:
    addresses = described("addresses", "id int4, a text, b text, c text, d text", rows=603)
    cities = described("cities", "id int4, a text, b text, c text, d text", rows=600)
    addresses = replace(addresses, foreign_keys=(points("b", "cities"),))
    shops = described(
        "shops", "id int4, at int4!, a text, b text, c text", ("id",), points("at", "addresses"), rows=2
    )
    people = [
        described(name, "id int4, at int4!, shop int4!, a text, b text", ("id",),
                  points("at", "addresses"), points("shop", "shops"), rows=rows)
        for name, rows in (("customers", 599), ("staff", 2))
    ]  # fmt: skip
    rentals = described("rentals", "id int4, c int4!, s int4!, a text, b text", ("id",),
                        points("c", "customers"), points("s", "staff"), rows=16_044)  # fmt: skip
    payments = described("payments", "id int4, c int4!", ("id",), points("c", "customers"), rows=16_044)
    ranked = [
        draft.root.name for draft in propose([addresses, cities, shops, *people, rentals, payments]).drafts
    ]
    assert ranked.index("customers") < ranked.index("addresses")
    assert "cities" not in ranked or ranked.index("customers") < ranked.index("cities")


def test_two_foreign_keys_make_fields_named_by_columns() -> None:
    addresses = described("addresses", "id int4, city text")
    orders = described(
        "orders", "id int4, billing_address_id int4, shipping_address_id int4", ("id",),
        points("billing_address_id", "addresses"), points("shipping_address_id", "addresses"),
    )  # fmt: skip
    items = described("items", "id int4, order_id int4", ("id",), points("order_id", "orders"))
    proposal = propose([addresses, orders, items])
    (order,) = proposal.drafts
    assert [join.name for join in order.joins] == ["billing_address", "shipping_address", "items"]
    assert "billing_address:    # by billing_address_id; 2 foreign keys lead to this table" in draft_text(
        order
    )
    assert why(proposal, "addresses") == "other tables reference this table, but none depends on it"


def test_parent_fields_of_two_keys_use_column_names() -> None:
    users = described("users", "id int4, a text, b text, c text, d text")
    posts = described("posts", "id int4, user_id int4", ("id",), points("user_id", "users"))
    messages = described(
        "messages", "id int4, sender_id int4, created_by int4, user_id int4", ("id",),
        points("sender_id", "users"), points("created_by", "users"), points("user_id", "users"),
    )  # fmt: skip
    (user,) = propose([users, posts, messages]).drafts
    assert sorted(join.name for join in user.joins) == [
        "messages", "messages_by_sender", "messages_created_by", "posts",
    ]  # fmt: skip


def test_a_tree_goes_one_up_and_one_down() -> None:
    categories = described(
        "categories", "id int4, parent_id int4, name text, code text, a text", ("id",),
        points("parent_id", "categories"),
    )  # fmt: skip
    products = described(
        "products", "id int4, category_id int4", ("id",), points("category_id", "categories")
    )
    drafted = texts(categories, products)
    assert list(drafted) == ["category"]
    assert (
        drafted["category"].partition("  - a\n")[2]
        == """\
  - parent: {one: public.categories, on: {id: parent_id}, fields: [parent_id, name, code, a]}
  - children:
      many: public.categories
      on: {parent_id: id}
      fields: [id, name, code, a]
  - products:
      many: public.products
      on: {category_id: id}
      fields: [id]
"""
    )


def test_unique_foreign_key_is_single_from_both_sides() -> None:
    users = described("users", "id int4, a text, b text, c text, d text")
    profiles = described("user_profiles", "user_id int4, bio text", ("user_id",), points("user_id", "users"))
    badges = described(
        "badges", "id int4, user_id int4, color text", ("id",), points("user_id", "users"),
        unique=[("user_id",)],
    )  # fmt: skip
    drafted = texts(users, profiles, badges)
    assert "- profile: {one: public.user_profiles, on: {user_id: id}, fields: [bio]}" in drafted["user"]
    assert "- badge: {one: public.badges, on: {user_id: id}, fields: [id, color]}" in drafted["user"]


def test_composite_keys_join_fully_and_name_distinctly() -> None:
    """All columns join, and the columns not shared between the keys name the fields."""
    shared = "tenant_id int4, id int4, a text, b text, c text, d text"
    users = described("users", shared, ("tenant_id", "id"))
    tasks = described(
        "tasks", "tenant_id int4, id int4, owner_id int4, reviewer_id int4", ("tenant_id", "id"),
        points("tenant_id, owner_id", "users", "tenant_id, id"),
        points("tenant_id, reviewer_id", "users", "tenant_id, id"),
    )  # fmt: skip
    steps = described(
        "steps", "tenant_id int4, task_id int4, step int4", ("tenant_id", "task_id", "step"),
        points("tenant_id, task_id", "tasks", "tenant_id, id"),
    )  # fmt: skip
    drafted = texts(users, tasks, steps)
    assert "on: {tenant_id: tenant_id, id: owner_id}" in drafted["task"]
    assert "- owner:" in drafted["task"]
    assert "- reviewer:" in drafted["task"]
    assert "on: {tenant_id: tenant_id, task_id: id}\n      fields: [step]" in drafted["task"]


@pytest.mark.parametrize(
    ("columns", "key", "unique"),
    [
        ("a_id int4, b_id int4, note text", ("a_id", "b_id"), ()),
        ("id int4, a_id int4, b_id int4, note text", ("id",), [("a_id", "b_id")]),
        ("a_id int4!, b_id int4!, note text", (), ()),
    ],
    ids=["its key", "a unique index beside a key of its own", "its columns without NULL"],
)
def test_what_makes_a_link(columns: str, key: tuple[str, ...], unique: Sequence[tuple[str, ...]]) -> None:
    wide = "id int4, p text, q text, r text, s text"
    first, second = described("a", wide), described("b", wide)
    link = described("a_b", columns, key, points("a_id", "a"), points("b_id", "b"), unique=unique)
    drafted = texts(first, second, link)
    way = "through: {table: public.a_b, on: {a_id: id}, to: {b_id: id}, fields: [note]}"
    assert way in drafted["a"]


@pytest.mark.parametrize(
    "columns",
    ["id int4, a_id int4!, b_id int4!", "a_id int4, b_id int4, c text, d text, e text, f text, g text"],
    ids=["a row of its own", "much to say for itself"],
)
def test_what_makes_no_link(columns: str) -> None:
    wide = "id int4, p text, q text, r text, s text"
    key = ("id",) if columns.startswith("id") else ("a_id", "b_id")
    table = described("a_b", columns, key, points("a_id", "a"), points("b_id", "b"))
    drafted = texts(described("a", wide), described("b", wide), table)
    assert "through" not in drafted["a"]
    assert "      many: public.a_b\n      on: {a_id: id}\n" in drafted["a"]


def test_link_belongs_to_side_leading_its_key() -> None:
    products = described("products", "id int4, a text, b text, c text, d text")
    orders = described("orders", "id int4, a text, b text, c text, d text")
    suppliers = described("suppliers", "id int4, a text, b text, c text, d text")
    supplied = described("supplies", "id int4, supplier_id int4, product_id int4!", ("id",),
                         points("supplier_id", "suppliers"), points("product_id", "products"))  # fmt: skip
    lines = described(
        "order_lines", "product_id int4, order_id int4, qty int4", ("order_id", "product_id"),
        points("product_id", "products"), points("order_id", "orders"),
    )  # fmt: skip
    proposal = propose([products, orders, lines])
    assert [draft.name for draft in proposal.drafts] == ["order"]
    assert why(proposal, "products") == "other tables reference this table, but none depends on it"
    drafted = texts(products, orders, lines, suppliers, supplied)
    assert (
        "through: {table: public.order_lines, on: {product_id: id}, to: {order_id: id}" in drafted["product"]
    )
    assert "order_lines" not in drafted["supplier"]


def test_self_link_gives_both_directions() -> None:
    people = described("people", "id int4, a text, b text, c text, d text")
    friends = described(
        "friendships", "person_id int4, friend_id int4", ("person_id", "friend_id"),
        points("person_id", "people"), points("friend_id", "people"),
    )  # fmt: skip
    cars = described("cars", "id int4, person_id int4", ("id",), points("person_id", "people"))
    (person,) = propose([people, friends, cars]).drafts
    assert [join.name for join in person.joins] == ["cars", "friends", "people"]


def test_suffixless_foreign_key_keeps_name_and_renames_row() -> None:
    countries = described("countries", "code text, name text", ("code",))
    staff = described(
        "staff", "id int4, country text, manager int4", ("id",),
        points("country", "countries", "code"), points("manager", "staff"),
    )  # fmt: skip
    pets = described("pets", "id int4, staff_id int4", ("id",), points("staff_id", "staff"))
    (drafted,) = propose([countries, staff, pets]).drafts
    assert [join.name for join in drafted.joins] == [
        "country_details", "manager_staff", "pets", "staff_by_manager",
    ]  # fmt: skip


def test_hub_of_many_tables_is_followed_partly() -> None:
    """The draft follows a hub up to a limit, and states the limit."""
    users = described("users", "id int4, name text")
    tables = [
        described(f"t{number:02}", "id int4, x text, user_id int4", ("id",), points("user_id", "users"))
        for number in range(40)
    ]
    drafted = texts(users, *tables)["user"]
    assert drafted.count("many: ") == MAX_JOINS
    assert "#   t39 (public.t39)\n" in drafted


def test_unjoinable_foreign_keys_are_ignored() -> None:
    parents = described("parents", "id text, x bytea, a text, b text", ("id",))
    children = described(
        "kids", "id int4, parent_id int4, gone_id int4", ("id",),
        points("parent_id", "parents"), points("gone_id", "not_carried"),
    )  # fmt: skip
    assert propose([parents, children]).drafts == ()


def test_foreign_key_rejected_by_check_is_omitted() -> None:
    """A column may have a name in braces: a message is not a format string."""
    parents = described("parents", "id int4, {x} interval, a text, b text", ("id",))
    children = described(
        "kids", {"id": "int4", "parent_id": "int4", "{x}": "interval"}, ("id",),
        points("parent_id", "parents"), points("{x}", "parents", "{x}"),
    )  # fmt: skip
    why_not = (
        "public.kids ({x}) -> public.parents: public.kids.{x} is interval and public.parents.{x} is "
        "interval: silver stores the value as text, where P30D and P1M differ; use another column, "
    )
    text = texts(parents, children)["parent"]
    assert text.count("many: public.kids") == 1
    assert (
        f"# Left out because a document cannot join or choose these rows like PostgreSQL:\n#   {why_not}"
        in text
    )
    lone = described("lone", "id int4, at interval", ("id",), points("at", "parents", "{x}"))
    assert why(propose([parents, lone]), "lone").startswith("left out: public.lone (at) -> public.parents: ")


def test_single_row_is_not_drafted_for_unordered_key() -> None:
    hosts = described("hosts", "ip inet, name text, code int4!", ("ip",), unique=[("code",)])
    visits = described(
        "visits", "id int4, code int4, a text, b text", ("id",), points("code", "hosts", "code")
    )
    notes = described("notes", "id int4, visit_id int4", ("id",), points("visit_id", "visits"))
    text = texts(hosts, visits, notes)["visit"]
    assert "one: public.hosts" not in text
    assert (
        "#   one row of public.hosts by code: the key decides which rows are selected, and 'ip' is inet"
        in text
    )
    # The key itself finds one row, so no choice is needed.
    direct = described("visits", "id int4, ip inet, a text, b text", ("id",), points("ip", "hosts", "ip"))
    assert "one: public.hosts" in texts(hosts, direct, notes)["visit"]


def test_documents_of_same_named_tables_carry_schema() -> None:
    tables: list[Described] = []
    for schema in ("public", "Sales"):
        root = TableName(schema, "orders")
        tables.append(described(root, "id int4, a text, b text, c text, d text"))
        key = ForeignKey(("order_id",), root, ("id",))
        tables.append(described(TableName(schema, "items"), "id int4, order_id int4", ("id",), key))
    assert sorted(texts(*tables)) == ["Sales_order", "order"]


@pytest.mark.parametrize(
    ("one", "many"),
    [
        ("customer", "customers"), ("address", "addresses"), ("category", "categories"), ("box", "boxes"),
        ("status", "statuses"), ("person", "people"), ("order_item", "order_items"), ("day", "days"),
        ("warehouse", "warehouses"), ("OrderItem", "OrderItems"), ("house", "houses"), ("branch", "branches"),
    ],
)  # fmt: skip
def test_plurals(one: str, many: str) -> None:
    assert (singular(many), plural(one), plural(many), singular(one)) == (one, many, many, one)


def test_stems() -> None:
    columns = ["country_id", "countryId", "id_cliente", "referred_by", "id", "country_code", "paid"]
    assert [stem(column_names) for column_names in columns] == [
        "country", "country", "cliente", "referred_by", "id", "country", "paid",
    ]  # fmt: skip


ODD = [
    "on", "no", "null", "true", "123", "1e3", "a b", "a.b", "a,b", "a;b", "{x}", "(y)", "`t`", '"q"', "'s'",
    "#hash", "x: y", "- z", "*", "&a", "!t", "%p", "@at", "~", "", "Straße", "名前", "a\nb", "a\tb", "\u2028",
    "\x85", "\x7f", "🙂", "_key", "_content_hash", "_deltasmelt_x", "=", "a_b", "A", "${HOME}", "\\", "$",
]  # fmt: skip
names = st.one_of(
    st.sampled_from([name for name in ODD if name]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6),
    st.sampled_from(["id", "a_id", "b_id", "name", "parent_id", "created_by"]),
)


def test_comment_may_name_column_rejected_by_yaml() -> None:
    """The random schemas below found this case."""
    columns = {"item": "int4", "\x7f": "bytea"}
    parts = described("parts", columns, ("item",), points("item", "items"), unique=[("item",)])
    assert "its only columns are: ?, left out" in "".join(
        texts(described("items", "id int4"), parts).values()
    )


@given(names)
def test_any_name_comes_back_from_yaml(name: str) -> None:
    file = parse_yaml(f"# {name.isprintable()}\n{scalar(name)}: [{scalar(name)}]", Path("x.yml"))
    assert file.data == {name: [name]}
    table = TableName(name, name[::-1])
    assert TableName.parse(parse_yaml(table_text(table), Path("x.yml")).data) == table


@st.composite
def schemas(draw: st.DrawFn) -> list[Described]:
    """Return tables with foreign keys of all kinds: to themselves, in cycles, composite, parallel."""
    table_names = draw(
        st.lists(
            st.builds(TableName, st.sampled_from(["public", "a b", "on"]), names),
            min_size=1, max_size=6, unique=True,
        )
    )  # fmt: skip
    kinds = st.sampled_from(
        ["int4", "int4", "int4!", "int4!", "int8", "text", "bytea", "numeric", "hstore", "inet", "interval"]
    )
    shapes = [
        draw(st.dictionaries(names, kinds, min_size=1, max_size=6).filter(_told_apart)) for _ in table_names
    ]
    tables = []
    for name, columns in zip(table_names, shapes, strict=True):
        key = draw(st.lists(st.sampled_from(sorted(columns)), min_size=1, max_size=2, unique=True))
        keys = []
        for _ in range(draw(st.integers(0, 3))):
            place = draw(st.integers(0, len(table_names) - 1))
            size = draw(st.integers(1, min(2, len(columns), len(shapes[place]))))
            mine, theirs = (
                draw(st.lists(st.sampled_from(sorted(namespace)), min_size=size, max_size=size, unique=True))
                for namespace in (columns, shapes[place])
            )
            keys.append(ForeignKey(tuple(mine), table_names[place], tuple(theirs), draw(st.booleans())))
        alone = draw(st.booleans())
        unique = [key.columns for key in keys[:1] if alone]
        rows = draw(st.sampled_from([0, 1, 500, 5000, 10_000_000]))
        tables.append(described(name, columns, key, *keys, unique=unique, rows=rows))
    return tables


def _told_apart(columns: Iterable[str]) -> bool:
    lower = [name.lower() for name in columns]
    return len(set(lower)) == len(lower)


@settings(max_examples=150)
@given(schemas())
def test_every_draft_is_valid_and_holds_root_columns(
    tables: list[Described],
) -> None:
    proposal = propose(tables)
    by_name = {described_table.name: described_table for described_table in tables}
    drafted = [draft.root for draft in proposal.drafts]
    assert sorted([*drafted, *(entry.table for entry in proposal.left_out)]) == sorted(by_name)
    assert len({draft.name.lower() for draft in proposal.drafts}) == len(proposal.drafts)
    for draft in proposal.drafts:
        tree = tree_of(draft, tables)
        expressions = {tree_field.expression for tree_field in tree.fields if isinstance(tree_field, Value)}
        expected = {
            column(source_column.name)
            for source_column in by_name[draft.root].table.columns
            if source_column.spark_type != "BINARY"
        }
        expected -= {column(name) for name, _ in draft.omitted}
        assert expressions == expected
        _tree_of_text(_with_arrays(draft_text(draft)), tables)
        assert draft.depth <= MAX_DEPTH
        assert len(tree.nodes()) <= MAX_JOINS
        _assert_no_way_meets_a_table_twice(draft.fields, [draft.root])


def _assert_no_way_meets_a_table_twice(fields: Iterable[Any], way: list[TableName]) -> None:
    for field in fields:
        if field.join is not None:
            repeated = field.join.table in way
            assert not repeated or field.join.table == way[-1]
            inner = field.join.fields
            assert not repeated or all(inner_field.join is None for inner_field in inner)
            _assert_no_way_meets_a_table_twice(inner, [*way, field.join.table])
