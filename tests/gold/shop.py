"""A small shop: rows in memory, PostgreSQL's stream of changes, and silver's own cycles over the stream."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from unittest.mock import patch
from zlib import crc32

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.shapes import Column, PgType, Relation
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.rebuild import rebuild
from deltasmelt.silver.schema.catalog import HISTORY_SUFFIX, SilverTable, silver_catalog, silver_table
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import BronzeWriter, change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake

Row = dict[str, Any]
Key = tuple[Any, ...]
Shapes: TypeAlias = "Mapping[str, tuple[dict[str, str], tuple[str, ...]]]"
"""For each table: PostgreSQL types of its columns, and its key."""

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


def relation(
    name: str,
    columns: Mapping[str, str],
    key: tuple[str, ...],
    *,
    attnums: Mapping[str, int | None] | None = None,
    from_lsn: int = 0,
    added: Mapping[str, str] | None = None,
) -> Relation:
    """Return a shape in the form that the reader records.

    Args:
        name: the name of the table.
        columns: PostgreSQL's types by column name.
        key: the columns of the key.
        attnums: by name, if they are not 1, 2, 3 …
        from_lsn: the LSN from which the shape holds.
        added: by name, the value in rows older than the column.
    """
    typmods = {"numeric": (12 << 16 | 2) + 4}
    return Relation(
        relation_id=crc32(name.encode()) % 2**31,
        table=TableName.parse(name),
        columns=tuple(
            Column(
                column,
                index if attnums is None else attnums[column],
                PgType("base", kind, typmod=typmods.get(kind, -1)),
                kind,
                in_identity=column in key,
                missing=(added or {}).get(column),
            )
            for index, (column, kind) in enumerate(columns.items(), 1)
        ),
        key=key,
        replica_identity="d",
        from_lsn=Lsn(from_lsn),
    )


def catalog(shapes: Shapes = SHAPES) -> dict[TableName, SilverTable]:
    """Return silver's catalog of the shop."""
    tables = (silver_table(relation(name, *shape), SilverSettings()) for name, shape in shapes.items())
    return {table.table: table for table in tables}


def text_of(value: Any) -> str | None:
    """Return PostgreSQL's text of a value."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}+00"
    return str(value)


def moment(days: float) -> datetime:
    """Return a point in time, to the microsecond."""
    return datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC) + timedelta(days=days)


def money(text: str) -> Decimal:
    return Decimal(text)


class Shop:
    """Rows of all tables as at the source, and silver.

    Changes of rows are one transaction until `transaction` ends the transaction, or `commit`. `commit` also
    writes all transactions into bronze, like the reader, and runs a cycle of silver.

    Args:
        spark: the session that silver uses.
        lake: the lake that silver writes.
        control: the control tables of the lake.
        shapes: the tables of the shop.
        settings: the settings of silver.
        tiny: rewrite small tables as a whole, as silver does. Otherwise silver writes small tables like large
            tables: rows that a MERGE does not touch stay, and deletion vectors mark removed rows.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        control: ControlTables,
        shapes: Shapes = SHAPES,
        *,
        settings: SilverSettings | None = None,
        tiny: bool = False,
    ) -> None:
        self._spark, self._lake, self._control = spark, lake, control
        self.tiny = tiny
        self._bronze = BronzeWriter(lake)
        self._changes: list[dict[str, Any]] = []
        self._new_shapes: list[Relation] = []
        self._uncopied = set(shapes)
        self._relations = {name: relation(name, *shape) for name, shape in shapes.items()}
        self._new_shapes += self._relations.values()
        self.shapes = {name: (dict(columns), key) for name, (columns, key) in shapes.items()}
        self.lsn = 1000
        self.rows: dict[str, dict[Key, Row]] = {name: {} for name in shapes}
        self.settings = settings or SilverSettings()
        self.silver = self.start_silver()

    def start_silver(self, control: ControlTables | None = None) -> Silver:
        """Start silver like a new process."""
        return Silver(self._spark, self._lake, self.settings, control or self._control)

    def catalog(self) -> dict[TableName, SilverTable]:
        """Return silver's tables by bronze's shapes."""
        return silver_catalog(read_relations(self._lake), self.settings)

    # -- rows
    # ------------------------------------------------------------------------------------

    def put(self, table: str, **values: Any) -> None:
        """Insert a row, or change the row with the key."""
        name = full_name(table)
        columns, key = self.shapes[name]
        identity = tuple(values[column] for column in key)
        before = self.rows[name].get(identity)
        assert values.keys() <= columns.keys(), values.keys() - columns.keys()
        row = {**(before or dict.fromkeys(columns)), **values}
        self.rows[name][identity] = row
        self._say(name, "insert" if before is None else "update", new=row)

    def remove(self, table: str, *key: Any) -> Row:
        """Delete a row and return the row."""
        name = full_name(table)
        row = self.rows[name].pop(tuple(key))
        self._say(name, "delete", old=row)
        return row

    def rekey(self, table: str, old: Key, **values: Any) -> None:
        """Change a row's key, and further values. If another row has the new key, delete the other row."""
        name = full_name(table)
        before = self.rows[name].pop(tuple(old))
        row = {**before, **values}
        identity = tuple(row[column] for column in self.shapes[name][1])
        if identity in self.rows[name]:
            self.remove(name, *identity)
        self.rows[name][identity] = row
        self._say(name, "update", new=row, old=before)

    def truncate(self, table: str) -> None:
        name = full_name(table)
        self.rows[name].clear()
        self._say(name, "truncate")

    def all(self, table: str) -> Iterable[Row]:
        return self.rows[full_name(table)].values()

    def _say(self, name: str, op: str, *, new: Row | None = None, old: Row | None = None) -> None:
        """Record the change that PostgreSQL sends, with only the key of an old row."""
        shape = self._relations[name]
        cells: dict[str, Any] = {}
        if new is not None:
            cells["new"] = [text_of(new[column.name]) for column in shape.columns]
        if old is not None:
            key = [text_of(old[column.name]) if column.in_identity else None for column in shape.columns]
            cells |= {"old": key, "old_is_key": True}
        self._changes.append(change(shape, op, **cells))

    # -- shapes
    # ------------------------------------------------------------------------------------

    def create(self, table: str, columns: Mapping[str, str], key: tuple[str, ...]) -> None:
        """CREATE TABLE; the next commit copies the table."""
        name = full_name(table)
        self.shapes[name] = (dict(columns), key)
        self._relations[name] = relation(name, columns, key)
        self._new_shapes.append(self._relations[name])
        self.rows[name] = {}
        self._uncopied.add(name)

    def drop(self, table: str) -> None:
        """DROP TABLE."""
        name = full_name(table)
        self.transaction()
        del self.shapes[name], self.rows[name]
        self._bronze.left_out(self._relations.pop(name))

    def rename_column(self, table: str, old: str, new: str) -> None:
        """ALTER TABLE … RENAME COLUMN."""
        name = full_name(table)
        self._reshape(name, {new if column == old else column: column for column in self.shapes[name][0]})

    def swap_columns(self, table: str, one: str, other: str) -> None:
        """Swap the names of two columns."""
        name, names = full_name(table), {one: other, other: one}
        self._reshape(name, {names.get(column, column): column for column in self.shapes[name][0]})

    def drop_column(self, table: str, old: str) -> None:
        """ALTER TABLE … DROP COLUMN."""
        name = full_name(table)
        self._reshape(name, {column: column for column in self.shapes[name][0] if column != old})

    def add_column(self, table: str, new: str, kind: str, default: Any = None) -> None:
        """ALTER TABLE … ADD COLUMN … DEFAULT."""
        name = full_name(table)
        self._reshape(name, {column: column for column in self.shapes[name][0]}, {new: (kind, default)})

    def widen_column(self, table: str, column: str, kind: str) -> None:
        """ALTER TABLE … ALTER COLUMN … TYPE, with a rewrite of the table by PostgreSQL."""
        name = full_name(table)
        self.shapes[name][0][column] = kind
        self._reshape(name, {column: column for column in self.shapes[name][0]})

    def _reshape(
        self, name: str, origins: Mapping[str, str], added: Mapping[str, tuple[str, Any]] | None = None
    ) -> None:
        """Change the shape from the next transaction on; `origins` has the columns' names before."""
        self.transaction()
        added = added or {}
        kinds, key = self.shapes[name]
        before = {column.name: column.attnum for column in self._relations[name].columns}
        attnums = {new: before[old] for new, old in origins.items()}
        attnums |= {new: self._last_attnum(name) + place for place, new in enumerate(added, 1)}
        columns = {new: kinds[old] for new, old in origins.items()}
        columns |= {new: kind for new, (kind, _) in added.items()}
        names = {old: new for new, old in origins.items()}
        self.shapes[name] = (columns, tuple(names[column] for column in key))
        filled = {new: value for new, (_, value) in added.items()}
        for identity, row in self.rows[name].items():
            self.rows[name][identity] = {new: row[old] for new, old in origins.items()} | filled
        texts = {new: text for new, value in filled.items() if (text := text_of(value)) is not None}
        missing = {column.name: column.missing for column in self._relations[name].columns}
        texts |= {new: text for new, old in origins.items() if (text := missing[old]) is not None}
        shape = relation(name, *self.shapes[name], attnums=attnums, from_lsn=self.lsn + 10, added=texts)
        self._relations[name] = shape
        self._new_shapes.append(shape)

    def _last_attnum(self, name: str) -> int:
        shapes = [
            shape for shape in [*read_relations(self._lake), *self._new_shapes] if str(shape.table) == name
        ]
        return max(column.attnum or 0 for shape in shapes for column in shape.columns)

    # -- bronze and silver
    # ------------------------------------------------------------------------------------

    def transaction(self) -> None:
        """End a transaction."""
        self.lsn += 10
        uncopied = {self._relations[name].relation_id for name in self._uncopied}
        self._bronze.add(self.lsn, [row for row in self._changes if row["relation_id"] not in uncopied])
        self._changes = []

    def resnapshot(self, table: str) -> None:
        """Copy the table again in its present state, while the stream continues."""
        self.transaction()
        self._copy(full_name(table))

    def lose(self, table: str) -> None:
        """Drop the table's changes since the last transaction, and mark the gap in bronze."""
        shape = self._relations[full_name(table)]
        self._changes = [row for row in self._changes if row["relation_id"] != shape.relation_id]
        self.transaction()
        self._bronze.gap(shape, self.lsn)

    def write(self) -> None:
        """Write all transactions into bronze, in one commit."""
        self.transaction()
        for name in sorted(self._uncopied):
            self._copy(name)
        self._uncopied = set()
        if self._new_shapes:
            self._bronze.relations(self._new_shapes)
        self._new_shapes = []
        self._bronze.commit(self.lsn)

    def _copy(self, name: str) -> None:
        shape = self._relations[name]
        rows = [[text_of(row[column.name]) for column in shape.columns] for row in self.rows[name].values()]
        self._bronze.snapshot(shape, self.lsn, rows)

    def fold(self, silver: Silver | None = None) -> Cut | None:
        """Run a cycle of silver."""
        if self.tiny:
            return (silver or self.silver).cycle()
        with patch("deltasmelt.silver.run.step_runner._TINY_TARGET", 0):
            return (silver or self.silver).cycle()

    def commit(self, *, without: Sequence[str] = ()) -> Cut:
        """Write the changes into bronze and fold them into silver; the cut lacks only tables in `without`."""
        self.write()
        cut = self.fold()
        assert cut is not None
        assert cut.commit_lsn == self.lsn
        expected = {TableName.parse(name).silver_name for name in self.shapes if name not in without}
        expected |= {f"{TableName.parse(name).silver_name}{HISTORY_SUFFIX}" for name in self.settings.history}
        assert set(cut.tables) == expected, self._control.open_errors()
        return cut

    @property
    def versions(self) -> dict[str, int]:
        """The versions in the newest cut of silver."""
        cut = self._control.latest_cut("silver")
        return {} if cut is None else dict(cut.tables)

    def derive_again(self) -> Cut:
        """Add the changes since the last cut at the cut's own LSN, and rebuild the changed tables.

        Silver lacked these changes before. The method records the cut of this LSN again, like `smelt rebuild
        silver`.
        """
        cut = self._control.latest_cut("silver")
        assert cut is not None
        names = {f"{row['table_schema']}.{row['table_name']}" for row in self._changes}
        self._bronze.add(self.lsn, [{**row, "seq": 10**6 + at} for at, row in enumerate(self._changes)])
        self._changes = []
        self._bronze.commit(self.lsn)
        relations, catalog = read_relations(self._lake), self.catalog()
        tables = dict(cut.tables)
        for table in (catalog[TableName.parse(name)] for name in names):
            version = rebuild(
                self._spark, self._lake, self.settings, table, relations=relations, end=cut.commit_lsn
            )
            tables[table.name] = version
        cut = replace(cut, tables=tables, recorded_at=datetime.now(UTC))
        self._control.record_cut(cut)
        return cut


def full_name(table: str) -> str:
    return table if "." in table else f"public.{table}"


def fill(shop: Shop) -> None:  # noqa: C901 - a list of rows, in loops
    """Fill a shop with every kind of row: empty lists, NULL keys, ties, several rows at one place.

    The function skips tables that the shop does not have.
    """

    def put(table: str, **values: Any) -> None:
        if full_name(table) in shop.shapes:
            shop.put(table, **values)

    for number, code in enumerate(("AT", "DE", "IT"), 1):
        put("countries", id=number, code=code, name=f"Country {code}")
    for number in range(1, 7):
        put("addresses", id=number, city=f"City {number}", country_id=1 + number % 3)
    for number in range(1, 9):
        put(
            "customers", id=number, email=f" User{number}@Example.com ", tier=None if number % 3 else "gold",
            balance=money(f"{number}.50"), country_id=None if number == 8 else 1 + number % 3,
            referred_by=None if number < 3 else number // 2,
            billing_id=1 + number % 6, shipping_id=1 + (number + 2) % 6,
            created_at=moment(number), deleted_at=moment(90) if number == 7 else None, notes="n",
        )  # fmt: skip
    for number in range(1, 6):
        put("products", id=number, name=f"Product {number}", price=money(f"{number}0.00"),
            launched=moment(number).date())  # fmt: skip
    for number in range(1, 16):
        status = ("placed", "paid", "cancelled", "paid")[number % 4]
        # Two orders of one customer share their time, so the key must break the tie; some orders have no
        # time.
        placed = None if number % 5 == 0 else moment(number // 4)
        put("orders", id=number, customer_id=None if number == 15 else 1 + number % 5, status=status,
            total=money(f"{number}.25"), placed_at=placed)  # fmt: skip
        for line in range(1, 2 + number % 3):
            put("order_items", order_id=number, line=line, product_id=1 + (number + line) % 5,
                sku=f"S{(number * line) % 4}", qty=line)  # fmt: skip
    for number in range(1, 13):
        put("logistics.parcels", id=number, order_id=1 + number % 6, line=1 + number % 2,
            weight=None if number == 4 else 0.1 * number,
            carrier=("dhl", "ups")[number % 2])  # fmt: skip
    for number, name in enumerate(("vip", "new", "old", "vip"), 1):
        put("tags", id=number, name=name)
    for customer in range(1, 6):
        for tag in range(1, 1 + customer % 4):
            put("customer_tags", customer_id=customer, tag_id=tag, added_at=moment(tag), active=tag != 2)


Filters = dict[str, "Callable[[Row], bool | None]"]
