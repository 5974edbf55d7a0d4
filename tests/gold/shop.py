"""A small shop as silver tables, kept in memory beside: what the tests of gold change and compare with."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable

from bronze.control import Cut
from bronze.identifiers import TableName
from bronze.lsn import Lsn
from bronze.shapes import Column, PgType, Relation
from silver.catalog import SilverTable, silver_table
from silver.settings import SilverSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from bronze.control_tables import ControlTables
    from bronze.lake import Lake

Row = dict[str, Any]
Key = tuple[Any, ...]
Shapes: TypeAlias = "Mapping[str, tuple[dict[str, str], tuple[str, ...]]]"
"""For each table: PostgreSQL types of its columns, and its key."""

_ARROW: Final[dict[str, pa.DataType]] = {
    "int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64(), "text": pa.string(), "bool": pa.bool_(),
    "numeric": pa.decimal128(12, 2), "timestamptz": pa.timestamp("us", tz="UTC"), "float8": pa.float64(),
    "date": pa.date32(), "hstore": pa.map_(pa.string(), pa.string()),
}  # fmt: skip

SHAPES: Final[Shapes] = {
    "public.countries": ({"id": "int2", "code": "text", "name": "text"}, ("id",)),
    "public.customers": (
        {
            "id": "int8", "email": "text", "tier": "text", "balance": "numeric", "country_id": "int2",
            "referred_by": "int8", "billing_id": "int8", "shipping_id": "int8", "created_at": "timestamptz",
            "deleted_at": "timestamptz", "notes": "text",
        },
        ("id",),
    ),
    "public.addresses": ({"id": "int8", "city": "text", "country_id": "int2"}, ("id",)),
    "public.orders": (
        {
            "id": "int8", "customer_id": "int8", "status": "text", "total": "numeric",
            "placed_at": "timestamptz",
        },
        ("id",),
    ),
    "public.order_items": (
        {"order_id": "int8", "line": "int2", "product_id": "int4", "sku": "text", "qty": "int4"},
        ("order_id", "line"),
    ),
    "logistics.parcels": (
        {"id": "int8", "order_id": "int8", "line": "int2", "weight": "float8", "carrier": "text"},
        ("id",),
    ),
    "public.products": ({"id": "int4", "name": "text", "price": "numeric", "launched": "date"}, ("id",)),
    "public.tags": ({"id": "int4", "name": "text"}, ("id",)),
    "public.customer_tags": (
        {"customer_id": "int8", "tag_id": "int4", "added_at": "timestamptz", "active": "bool"},
        ("customer_id", "tag_id"),
    ),
}  # fmt: skip


SOFT: Final = frozenset(("public.customers", "public.order_items", "public.customer_tags", "public.products"))
"""Tables whose deleted rows stay in silver, marked."""


def relation(name: str, columns: Mapping[str, str], key: tuple[str, ...]) -> Relation:
    """A shape as the reader records it."""
    typmods = {"numeric": (12 << 16 | 2) + 4}
    return Relation(
        relation_id=abs(hash(name)) % 2**31,
        table=TableName.parse(name),
        columns=tuple(
            Column(
                column,
                index + 1,
                PgType("base", kind, typmod=typmods.get(kind, -1)),
                kind,
                in_identity=column in key,
            )
            for index, (column, kind) in enumerate(columns.items())
        ),
        key=key,
        replica_identity="d",
        from_lsn=Lsn(0),
    )


def catalog(shapes: Shapes = SHAPES) -> dict[TableName, SilverTable]:
    """Silver's catalog of the shop."""
    tables = (silver_table(relation(name, *shape), SilverSettings()) for name, shape in shapes.items())
    return {table.table: table for table in tables}


def moment(days: float) -> datetime:
    """A point in time, to the microsecond."""
    return datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC) + timedelta(days=days)


def money(text: str) -> Decimal:
    return Decimal(text)


class Shop:
    """Rows of all tables, and silver tables of them. `commit` writes what changed and records a cut."""

    def __init__(
        self, lake: Lake, control: ControlTables, shapes: Shapes = SHAPES, soft: Collection[str] = SOFT
    ) -> None:
        self._lake = lake
        self._control = control
        self._soft = soft
        self.shapes = shapes
        self.lsn = 1000
        self.rows: dict[str, dict[Key, Row]] = {name: {} for name in shapes}
        self._written: dict[str, dict[Key, Row]] = {name: {} for name in shapes}
        self.versions: dict[str, int] = {}
        for name, (columns, _) in shapes.items():
            silver_name = TableName.parse(name).silver_name
            DeltaTable.create(
                lake.uri("silver", silver_name),
                schema=pa.schema([pa.field(column, _ARROW[kind]) for column, kind in columns.items()]
                                 + [pa.field("_commit_lsn", pa.int64())]
                                 + ([pa.field("_deleted", pa.bool_())] if name in soft else [])),
                configuration={"delta.enableChangeDataFeed": "true"},
            )  # fmt: skip
            self.versions[silver_name] = 0

    def put(self, table: str, **values: Any) -> None:
        """Insert a row, or change the row of that key."""
        name = table if "." in table else f"public.{table}"
        columns, key = self.shapes[name]
        identity = tuple(values[column] for column in key)
        known = self.rows[name].get(identity, dict.fromkeys(columns))
        assert values.keys() <= columns.keys(), values.keys() - columns.keys()
        self.rows[name][identity] = {**known, **values}

    def remove(self, table: str, *key: Any) -> Row:
        """Delete a row; returns it."""
        name = table if "." in table else f"public.{table}"
        return self.rows[name].pop(tuple(key))

    def rekey(self, table: str, old: Key, **values: Any) -> None:
        """Change a row's key, as silver sees it: one row goes, another comes."""
        row = self.remove(table, *old)
        self.put(table, **{**row, **values})

    def truncate(self, table: str) -> None:
        self.rows[table if "." in table else f"public.{table}"].clear()

    def all(self, table: str) -> Iterable[Row]:
        return self.rows[table if "." in table else f"public.{table}"].values()

    def commit(self) -> Cut:
        """Write the changes since the last commit, each table in one version, and record the cut."""
        self.lsn += 10
        for name, rows in self.rows.items():
            before = self._written[name]
            gone = [key for key in before if key not in rows]
            came = [key for key, row in rows.items() if before.get(key) != row]
            if gone or came:
                self._write(name, [before[key] for key in gone], [rows[key] for key in came])
                self._written[name] = copy.deepcopy(rows)
        cut = Cut("silver", Lsn(self.lsn), moment(self.lsn), dict(self.versions))
        self._control.record_cut(cut)
        return cut

    def _write(self, name: str, gone: list[Row], came: list[Row]) -> None:
        columns, key = self.shapes[name]
        silver_name = TableName.parse(name).silver_name
        schema = pa.schema(
            [pa.field(column, _ARROW[kind]) for column, kind in columns.items()]
            + [pa.field("_commit_lsn", pa.int64()), pa.field("_gone", pa.bool_())]
        )
        rows = [{**row, "_commit_lsn": self.lsn, "_gone": False} for row in came]
        rows += [{**row, "_commit_lsn": self.lsn, "_gone": True} for row in gone]
        table = DeltaTable(self._lake.uri("silver", silver_name))
        values = {f"`{column}`": f"s.`{column}`" for column in (*columns, "_commit_lsn")}
        soft = name in self._soft
        marked = {"`_deleted`": "s._gone"} if soft else {}
        merge = (
            table.merge(
                pa.Table.from_pylist(rows, schema=schema),
                predicate=" AND ".join(f"t.`{column}` = s.`{column}`" for column in key),
                source_alias="s",
                target_alias="t",
            )
            .when_matched_update(updates={**values, **marked}, predicate=None if soft else "NOT s._gone")
            .when_not_matched_insert(updates={**values, **marked})
        )
        (merge if soft else merge.when_matched_delete(predicate="s._gone")).execute()
        self.versions[silver_name] = DeltaTable(self._lake.uri("silver", silver_name)).version()


def fill(shop: Shop) -> None:  # noqa: C901 - a list of rows, in loops
    """A shop with something of everything: empty lists, NULL keys, ties, several at one place."""
    for number, code in enumerate(("AT", "DE", "IT"), 1):
        shop.put("countries", id=number, code=code, name=f"Country {code}")
    for number in range(1, 7):
        shop.put("addresses", id=number, city=f"City {number}", country_id=1 + number % 3)
    for number in range(1, 9):
        shop.put(
            "customers", id=number, email=f" User{number}@Example.com ", tier=None if number % 3 else "gold",
            balance=money(f"{number}.50"), country_id=None if number == 8 else 1 + number % 3,
            referred_by=None if number < 3 else number // 2,
            billing_id=1 + number % 6, shipping_id=1 + (number + 2) % 6,
            created_at=moment(number), deleted_at=moment(90) if number == 7 else None, notes="n",
        )  # fmt: skip
    for number in range(1, 6):
        shop.put("products", id=number, name=f"Product {number}", price=money(f"{number}0.00"),
                 launched=moment(number).date())  # fmt: skip
    for number in range(1, 16):
        status = ("placed", "paid", "cancelled", "paid")[number % 4]
        # Two orders of one customer share their time, so that the key must break the tie; some have none.
        placed = None if number % 5 == 0 else moment(number // 4)
        shop.put("orders", id=number, customer_id=None if number == 15 else 1 + number % 5, status=status,
                 total=money(f"{number}.25"), placed_at=placed)  # fmt: skip
        for line in range(1, 2 + number % 3):
            shop.put("order_items", order_id=number, line=line, product_id=1 + (number + line) % 5,
                     sku=f"S{(number * line) % 4}", qty=line)  # fmt: skip
    for number in range(1, 13):
        shop.put("logistics.parcels", id=number, order_id=1 + number % 6, line=1 + number % 2,
                 weight=None if number == 4 else 0.1 * number,
                 carrier=("dhl", "ups")[number % 2])  # fmt: skip
    for number, name in enumerate(("vip", "new", "old", "vip"), 1):
        shop.put("tags", id=number, name=name)
    for customer in range(1, 6):
        for tag in range(1, 1 + customer % 4):
            shop.put("customer_tags", customer_id=customer, tag_id=tag, added_at=moment(tag), active=tag != 2)


Filters = dict[str, "Callable[[Row], bool | None]"]
