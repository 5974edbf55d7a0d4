"""The demo's followed changes: one customer's and some tables' changes, from the source to the document.

A separate transaction in the shop's database makes each change. The change's position is the server's WAL
position after the commit. A layer contains the change after reaching this position, and the demo shows the
time from the commit to this moment. Then the demo queries the lake itself: only changes found in silver and
gold count.

**Act 1** is one customer's order: three tables in one transaction, one document. **Act 2** shows losses of
common pipelines: a TRUNCATE, a changed key, an added column, a long value not sent by PostgreSQL. The demo
kills the reader between these changes, before bronze has the last change.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.demo.workload import Spared
from deltasmelt.silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import psycopg

    from deltasmelt.bronze.lake.location import Layer

LAYERS: Final[tuple[Layer, ...]] = ("bronze", "silver", "gold")
_CHOSEN: Final = (
    "SELECT c.id, c.full_name FROM customers c WHERE c.notes IS NOT NULL AND c.deleted_at IS NULL "
    "AND c.country_id IS NOT NULL AND (SELECT count(*) FROM orders o WHERE o.customer_id = c.id "
    "AND o.status <> 'cancelled') = 1 AND EXISTS (SELECT FROM customer_tags t WHERE t.customer_id = c.id) "
    "ORDER BY c.id LIMIT 2"
)


@dataclass(slots=True)
class Followed:
    """One followed change."""

    # description of the change at the source
    title: str
    # time of the commit, by the monotonic clock
    made_at: float
    # the server's WAL position after the commit
    position: Lsn
    # time until each layer contained the change
    seconds: dict[Layer, float] = field(default_factory=dict)
    # whether a query found the change in the lake; None before the query
    arrived: bool | None = None

    def reached(self, layer: Layer, place: Lsn | None) -> None:
        """Record a layer's position."""
        if place is not None and place >= self.position and layer not in self.seconds:
            self.seconds[layer] = time.monotonic() - self.made_at

    @property
    def through(self) -> bool:
        """True if every layer contains the change."""
        return len(self.seconds) == len(LAYERS)


@dataclass(frozen=True, slots=True)
class Order:
    """The order of act 1, and its form in each layer."""

    customer: int
    name: str
    order: int
    product: str

    @property
    def queries(self) -> dict[Layer, str]:
        """Return the statement for reading the order from each layer."""
        return {
            "bronze": "SELECT commit_ts, op, table_name, map_from_arrays(columns, new) AS new "
            "FROM bronze.changes WHERE table_name = 'orders' AND op = 'insert' "
            f"AND map_from_arrays(columns, new)['id'] = '{self.order}'",
            "silver": "SELECT id, customer_id, status, total, placed_at FROM silver.orders "
            f"WHERE id = {self.order}",
            "gold": "SELECT id, name, email, tier, country, order_count, lifetime_value, tags, "
            f"slice(orders, 1, 1) AS orders FROM gold.customer WHERE id = {self.customer}",
        }

    def is_in(self, layer: Layer, row: Mapping[str, Any]) -> bool:
        """Check whether a layer's row contains the order."""
        if layer == "bronze":
            return str(row["new"]["id"]) == str(self.order)
        if layer == "silver":
            return (row["id"], row["customer_id"]) == (self.order, self.customer)
        newest = row["orders"][0]
        order_and_product = newest["id"], newest["items"][0]["product"]["name"]
        return order_and_product == (self.order, self.product)


class Story:
    """The followed changes and their results.

    Args:
        shop: a separate connection to the shop's database, with autocommit.
    """

    def __init__(self, shop: psycopg.Connection[Any]) -> None:
        self._shop = shop
        (self._customer, self._name), (self._rekeyed, self._rekeyed_name) = shop.execute(_CHOSEN).fetchall()
        # The workload spares these customers, so only the story changes the followed rows.
        self.spared = Spared({self._customer, self._rekeyed})
        self.followed: list[Followed] = []
        self.order: Order | None = None
        self._checks: dict[str, str] = {}

    def first_act(self) -> None:
        """Make an order: a row of `orders`, a row of `order_items`, and the total, in a transaction."""
        with self._shop.transaction():
            order = self._value(
                "INSERT INTO orders (customer_id, status) VALUES (%s, 'paid') RETURNING id", self._customer
            )
            self.spared.orders.add(order)
            product = self._value(
                "INSERT INTO order_items (order_id, line, product_id, sku, qty, unit_price) "
                "SELECT %s, 1, id, sku, 2, price FROM products WHERE id = 42 "
                "RETURNING (SELECT name FROM products WHERE id = 42)",
                order,
            )
            self._shop.execute(
                "UPDATE orders SET total = (SELECT sum(qty * unit_price) FROM order_items "
                "WHERE order_id = %s) WHERE id = %s",
                [order, order],
            )
        self.order = Order(self._customer, self._name, order, product)
        self._committed(f"{self._name} orders 2 units of {product}")

    def second_act(self, kill_reader: Callable[[], None]) -> None:
        """Make a TRUNCATE, a changed key, a new column, a long unchanged value; kill the reader between."""
        now = self._value("SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')")
        self._shop.execute("TRUNCATE customer_tags")
        self._committed(
            "TRUNCATE customer_tags",
            "(SELECT count(*) FROM silver.customer_tags "
            f"WHERE added_at < TIMESTAMP {literal(now)}) = 0 AND "
            f"(SELECT max(size(tags)) FROM gold.customer WHERE id = {self._customer}) = 0",
        )
        new = self._value("SELECT nextval(pg_get_serial_sequence('customers', 'id'))")
        self.spared.customers.add(new)
        self._shop.execute("UPDATE customers SET id = %s WHERE id = %s", [new, self._rekeyed])
        kill_reader()
        self._committed(
            f"{self._rekeyed_name}'s key changes, {self._rekeyed} → {new}",
            "(SELECT array_sort(collect_list(id)) FROM silver.customers "
            f"WHERE id IN ({self._rekeyed}, {new})) = array({new}L) AND "
            f"(SELECT collect_list(id) FROM gold.customer WHERE id IN ({self._rekeyed}, {new})) "
            f"= array({new}L)",
        )
        self._shop.execute("ALTER TABLE customers ADD COLUMN points integer NOT NULL DEFAULT 10")
        self._shop.execute("UPDATE customers SET points = 42 WHERE id = %s", [self._customer])
        self._committed(
            "ALTER TABLE customers ADD COLUMN points",
            f"(SELECT points FROM silver.customers WHERE id = {self._customer}) = 42 AND "
            "(SELECT count_if(points IS NULL OR points NOT IN (10, 42)) FROM silver.customers) = 0",
        )
        balance, size, digest = self._row(
            "UPDATE customers SET balance = balance + 1000 WHERE id = %s "
            "RETURNING balance, length(notes), md5(notes)",
            self._customer,
        )
        self._committed(
            f"{self._name}'s balance changes, not the note of {size:,} characters",
            "(SELECT count(*) FROM bronze.changes WHERE table_name = 'customers' AND op = 'update' "
            f"AND map_from_arrays(columns, new)['balance'] = '{balance}' "
            "AND array_contains(unchanged, 'notes')) = 1 AND "
            f"(SELECT count(*) FROM silver.customers WHERE id = {self._customer} AND balance = {balance} "
            f"AND md5(notes) = '{digest}') = 1 AND "
            f"(SELECT max(account.balance) FROM gold.customer WHERE id = {self._customer}) = {balance}",
        )

    def reached(self, layer: Layer, place: Lsn | None) -> None:
        """Record a layer's position for all changes."""
        for change in self.followed:
            change.reached(layer, place)

    def find_order(self, rows: Callable[[str], list[str]]) -> dict[Layer, str]:
        """Return the order's JSON in each layer, and record whether the order is present.

        Args:
            rows: runs a statement over the lake and returns each row as JSON.
        """
        if self.order is None:
            raise RuntimeError("nothing was ordered yet")
        order_texts: dict[Layer, str] = {}
        for layer, query in self.order.queries.items():
            texts = rows(query)
            if len(texts) == 1 and self.order.is_in(layer, json.loads(texts[0])):
                order_texts[layer] = texts[0]
        self.followed[0].arrived = len(order_texts) == len(LAYERS)
        return order_texts

    def find_rest(self, rows: Callable[[str], list[str]]) -> None:
        """Record for each of the other changes whether the lake contains the change."""
        changes = [change for change in self.followed if change.title in self._checks]
        columns = ", ".join(f"{self._checks[change.title]} AS c{at}" for at, change in enumerate(changes))
        (text,) = rows(f"SELECT {columns}")
        answers = json.loads(text)
        for at, change in enumerate(changes):
            change.arrived = answers.get(f"c{at}") is True

    def _committed(self, title: str, check: str | None = None) -> None:
        at = time.monotonic()
        position = Lsn.parse(self._value("SELECT pg_current_wal_insert_lsn()::text"))
        self.followed.append(Followed(title, at, position))
        if check is not None:
            self._checks[title] = check

    def _value(self, statement: str, *values: object) -> Any:
        return self._row(statement, *values)[0]

    def _row(self, statement: str, *values: object) -> tuple[Any, ...]:
        row = self._shop.execute(statement.encode(), values).fetchone()
        if row is None:
            raise RuntimeError(f"the shop has no row for: {statement}")
        return tuple(row)
