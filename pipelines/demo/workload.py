"""The shop at work: activities of customers and clerks, as SQL, at a steady rate.

The workload makes every kind of change: inserts over several tables in one transaction, updates without a
change of a large TOAST value, deletes with cascades. Rows move to another parent, links are added and
removed, a transaction is rolled back. `pipelines.demo.story` adds TRUNCATE and changes of keys and columns.
Ids are drawn from existing rows, so the workload's only state is the number of customers and orders.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import psycopg

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from psycopg import Connection
    from psycopg.rows import TupleRow

    Action: TypeAlias = Callable[["Shop"], None]

_FIRST: Final = (
    "Ada",
    "Bruno",
    "Chloé",
    "Dario",
    "Elif",
    "Finn",
    "Giulia",
    "Haruto",
    "Ines",
    "Jonas",
    "Kaja",
)
_LAST: Final = ("Meier", "Rossi", "Dubois", "Sato", "Silva", "Jansen", "Novak", "Berg", "Weiß", "Ortiz")
_STREETS: Final = ("Main Street", "Bahnhofstrasse", "Rue du Lac", "Via Roma", "Sakura-dori")
_CITIES: Final = ("Bern", "Lyon", "Turin", "Osaka", "Graz", "Porto", "Leeds")


@dataclass(frozen=True, slots=True)
class Spared:
    """Ids of rows outside the workload; others may add ids while the workload runs."""

    customers: set[int] = field(default_factory=set)
    orders: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Shop:
    """The state of the workload: its connection, its dice, and the number of customers and orders."""

    connection: Connection[TupleRow]
    dice: random.Random
    customers: int
    orders: int
    spared: Spared = field(default_factory=Spared)
    done: dict[str, int] = field(default_factory=dict)

    def run(self, statement: str, *values: object) -> list[TupleRow]:
        """Run one statement; return its rows, if any."""
        cursor = self.connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []

    def customer(self) -> int:
        """Return some customer's id, newer customers more often; the customer may be deleted."""
        return self._pick_id(4, self.customers, self.spared.customers)

    def order(self) -> int:
        """Return some order's id, newer orders more often; the order may be deleted."""
        return self._pick_id(6, self.orders, self.spared.orders)

    def _pick_id(self, steepness: float, newest: int, spared: set[int]) -> int:
        while (number := newest - min(int(self.dice.expovariate(steepness) * newest), newest - 1)) in spared:
            pass
        return number


def place_order(shop: Shop) -> None:
    """Order one to five products; the total follows the items."""
    rows = shop.run(
        "INSERT INTO orders (customer_id, gift) SELECT id, %s FROM customers WHERE id = %s RETURNING id",
        shop.dice.random() < 0.1,
        shop.customer(),
    )
    if not rows:
        return
    shop.orders = max(shop.orders, rows[0][0])
    products = shop.dice.sample(range(1, 251), shop.dice.randint(1, 5))
    shop.run(
        "INSERT INTO order_items (order_id, line, product_id, sku, qty, unit_price) "
        "SELECT %s, wanted.line, products.id, products.sku, 1 + wanted.line %% 3, products.price "
        "FROM unnest(%s::int[]) WITH ORDINALITY AS wanted (id, line) JOIN products USING (id)",
        rows[0][0],
        products,
    )
    _total(shop, rows[0][0])


def move_order_on(shop: Shop) -> None:
    """Pay, ship or deliver an order."""
    shop.run(
        "UPDATE orders SET status = (CASE status WHEN 'placed' THEN 'paid' WHEN 'paid' THEN 'shipped' "
        "ELSE 'delivered' END)::order_status WHERE id = %s AND status <> 'cancelled'",
        shop.order(),
    )


def cancel_order(shop: Shop) -> None:
    """Cancel an order, which removes the order from documents with a filter on the status."""
    shop.run("UPDATE orders SET status = 'cancelled' WHERE id = %s", shop.order())


def change_items(shop: Shop) -> None:
    """Change the quantity of one line of an order, and delete another line."""
    order = shop.order()
    shop.run("UPDATE order_items SET qty = 1 + qty %% 5 WHERE order_id = %s AND line = 1", order)
    shop.run("DELETE FROM order_items WHERE order_id = %s AND line = 3", order)
    _total(shop, order)


def register(shop: Shop) -> None:
    """Add a customer with a billing address; some customers have a long note."""
    first, last = shop.dice.choice(_FIRST), shop.dice.choice(_LAST)
    note = "Prefers to be called in the evening; " * 120 if shop.dice.random() < 0.2 else None
    rows = shop.run(
        "INSERT INTO customers (email, full_name, tier, country_id, preferences, notes) "
        "VALUES (%s, %s, %s, %s, jsonb_build_object('language', 'en'), %s) RETURNING id",
        f"{first}.{last}.{shop.dice.randrange(10**6)}@example.com",
        f"{first} {last}",
        shop.dice.choice((None, "free", "plus")),
        shop.dice.randint(1, 12),
        note,
    )
    shop.customers = max(shop.customers, rows[0][0])
    shop.run(
        "INSERT INTO addresses (customer_id, kind, street, city, postal_code, country_id) "
        "VALUES (%s, 'billing', %s, %s, %s, %s)",
        rows[0][0],
        f"{shop.dice.choice(_STREETS)} {shop.dice.randint(1, 180)}",
        shop.dice.choice(_CITIES),
        f"{shop.dice.randrange(100000):05}",
        shop.dice.randint(1, 12),
    )


def change_balance(shop: Shop) -> None:
    """Change a balance, the most common update; PostgreSQL does not send the unchanged long note."""
    shop.run(
        "UPDATE customers SET balance = balance + %s WHERE id = %s",
        round(shop.dice.uniform(-50, 80), 2),
        shop.customer(),
    )


def change_tier(shop: Shop) -> None:
    """Change a customer's tier."""
    shop.run(
        "UPDATE customers SET tier = %s, preferences = preferences || '{\"marketing\": true}' WHERE id = %s",
        shop.dice.choice(("free", "plus", "business")),
        shop.customer(),
    )


def move_house(shop: Shop) -> None:
    """Change an address's street and city."""
    shop.run(
        "UPDATE addresses SET street = %s, city = %s WHERE customer_id = %s AND kind = 'billing'",
        f"{shop.dice.choice(_STREETS)} {shop.dice.randint(1, 180)}",
        shop.dice.choice(_CITIES),
        shop.customer(),
    )


def hand_over_address(shop: Shop) -> None:
    """Give a shipping address to another customer: both documents change."""
    shop.run(
        "UPDATE addresses SET customer_id = new.id FROM customers AS new "
        "WHERE new.id = %s AND addresses.customer_id = %s AND kind = 'shipping'",
        shop.customer(),
        shop.customer(),
    )


def tag_customer(shop: Shop) -> None:
    """Add a tag to a customer, or refresh an existing tag."""
    shop.run(
        "INSERT INTO customer_tags (customer_id, tag_id) SELECT id, %s FROM customers WHERE id = %s "
        "ON CONFLICT (customer_id, tag_id) DO UPDATE SET added_at = now()",
        shop.dice.randint(1, 12),
        shop.customer(),
    )


def untag_customer(shop: Shop) -> None:
    """Remove a customer's tags."""
    shop.run("DELETE FROM customer_tags WHERE customer_id = %s AND tag_id %% 2 = 0", shop.customer())


def change_price(shop: Shop) -> None:
    """Change a product's price, and so every document with the product."""
    shop.run(
        "UPDATE products SET price = round(price * %s::numeric, 2) WHERE id = %s",
        shop.dice.uniform(0.9, 1.1),
        shop.dice.randint(1, 250),
    )


def leave(shop: Shop) -> None:
    """Delete a customer, with addresses, orders, items and tags."""
    shop.run("DELETE FROM customers WHERE id = %s", shop.customer())


def close_account(shop: Shop) -> None:
    """Mark a customer as deleted, or as active again."""
    shop.run(
        "UPDATE customers SET deleted_at = CASE WHEN deleted_at IS NULL THEN now() END WHERE id = %s",
        shop.customer(),
    )


def change_mind(shop: Shop) -> None:
    """Roll a transaction back; no trace remains."""
    shop.run("UPDATE customers SET balance = 0")
    raise psycopg.Rollback


def write_note(shop: Shop) -> None:
    """Write a long note again, with other text."""
    shop.run(
        "UPDATE customers SET notes = repeat(%s, 100) WHERE id = %s",
        f"Call of {time.time():.0f}: all settled. ",
        shop.customer(),
    )


def _total(shop: Shop, order: int) -> None:
    shop.run(
        "UPDATE orders SET total = coalesce((SELECT sum(qty * unit_price) FROM order_items "
        "WHERE order_id = orders.id), 0) WHERE id = %s",
        order,
    )


ACTIONS: Final[dict[Action, int]] = {
    place_order: 30, move_order_on: 22, change_balance: 16, register: 6, move_house: 5, tag_customer: 5,
    change_items: 5, change_tier: 3, write_note: 2, cancel_order: 2, untag_customer: 1, hand_over_address: 1,
    close_account: 1, change_price: 1, leave: 1,
}  # fmt: skip
"""The shop's activities, with their relative frequency."""

_ROLLED_BACK_EVERY: Final = 500


def run_workload(
    dsn: str,
    *,
    seconds: float,
    rate: float,
    stop: threading.Event,
    committed: Callable[[int], None],
    seed: int = 1,
    spared: Spared | None = None,
) -> int:
    """Run the shop; return the number of committed transactions.

    Args:
        rate: transactions per second; fewer on a slow server.
        committed: receives the number so far, now and then.
        seed: seed of the dice, for repeatable runs.
    """
    count = 0
    with psycopg.connect(dsn, autocommit=True, application_name="smelt-demo-shop") as connection:
        top = connection.execute(
            "SELECT (SELECT max(id) FROM customers), (SELECT max(id) FROM orders)"
        ).fetchone()
        if top is None:
            return 0
        dice = random.Random(seed)  # noqa: S311 - a shop, not a secret
        shop = Shop(connection, dice, *top)
        shop.spared = spared or shop.spared
        actions, weights = list(ACTIONS), list(ACTIONS.values())
        start = time.monotonic()
        while not stop.is_set() and time.monotonic() - start < seconds:
            count += 1
            action = (
                change_mind if count % _ROLLED_BACK_EVERY == 0 else shop.dice.choices(actions, weights)[0]
            )
            with connection.transaction():
                action(shop)
            shop.done[action.__name__] = shop.done.get(action.__name__, 0) + 1
            if count % 10 == 0:
                committed(count)
                stop.wait(max(0.0, start + count / rate - time.monotonic()))
    committed(count)
    return count
