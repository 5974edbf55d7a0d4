"""The shop at work: what customers and clerks do, as SQL, at a steady rate.

Every kind of change that a pipeline has to carry happens: inserts over several tables in one transaction,
updates that leave a large TOAST value unchanged, deletes that cascade. Rows move to another parent, links are
added and removed, a transaction is rolled back. TRUNCATE and changes of keys and columns come with what is
followed (`pipelines.demo.story`). Ids are drawn from what exists, so the workload keeps no state but a count
of customers and orders.
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
    """Ids of rows that the workload leaves alone; others may add to them while it works."""

    customers: set[int] = field(default_factory=set)
    orders: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Shop:
    """The state of the workload: its connection, its dice, and how many customers and orders there are."""

    connection: Connection[TupleRow]
    dice: random.Random
    customers: int
    orders: int
    spared: Spared = field(default_factory=Spared)
    done: dict[str, int] = field(default_factory=dict)

    def run(self, statement: str, *values: object) -> list[TupleRow]:
        """Run one statement; the rows it returns, if any."""
        cursor = self.connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []

    def customer(self) -> int:
        """Some customer's id, newer ones more often; perhaps of one who is gone."""
        return self._some(4, self.customers, self.spared.customers)

    def order(self) -> int:
        """Some order's id, newer ones more often; perhaps of one that is gone."""
        return self._some(6, self.orders, self.spared.orders)

    def _some(self, steepness: float, newest: int, spared: set[int]) -> int:
        while (found := newest - min(int(self.dice.expovariate(steepness) * newest), newest - 1)) in spared:
            pass
        return found


def place_order(shop: Shop) -> None:
    """A customer orders one to five products; the total follows the items."""
    made = shop.run(
        "INSERT INTO orders (customer_id, gift) SELECT id, %s FROM customers WHERE id = %s RETURNING id",
        shop.dice.random() < 0.1,
        shop.customer(),
    )
    if not made:
        return
    shop.orders = max(shop.orders, made[0][0])
    products = shop.dice.sample(range(1, 251), shop.dice.randint(1, 5))
    shop.run(
        "INSERT INTO order_items (order_id, line, product_id, sku, qty, unit_price) "
        "SELECT %s, wanted.line, products.id, products.sku, 1 + wanted.line %% 3, products.price "
        "FROM unnest(%s::int[]) WITH ORDINALITY AS wanted (id, line) JOIN products USING (id)",
        made[0][0],
        products,
    )
    _total(shop, made[0][0])


def move_order_on(shop: Shop) -> None:
    """An order is paid, shipped, delivered."""
    shop.run(
        "UPDATE orders SET status = (CASE status WHEN 'placed' THEN 'paid' WHEN 'paid' THEN 'shipped' "
        "ELSE 'delivered' END)::order_status WHERE id = %s AND status <> 'cancelled'",
        shop.order(),
    )


def cancel_order(shop: Shop) -> None:
    """An order is cancelled, which takes it out of the documents that filter by status."""
    shop.run("UPDATE orders SET status = 'cancelled' WHERE id = %s", shop.order())


def change_items(shop: Shop) -> None:
    """One line of an order changes its quantity, another one goes."""
    order = shop.order()
    shop.run("UPDATE order_items SET qty = 1 + qty %% 5 WHERE order_id = %s AND line = 1", order)
    shop.run("DELETE FROM order_items WHERE order_id = %s AND line = 3", order)
    _total(shop, order)


def register(shop: Shop) -> None:
    """A new customer with a billing address; some have a long note."""
    first, last = shop.dice.choice(_FIRST), shop.dice.choice(_LAST)
    note = "Prefers to be called in the evening; " * 120 if shop.dice.random() < 0.2 else None
    made = shop.run(
        "INSERT INTO customers (email, full_name, tier, country_id, preferences, notes) "
        "VALUES (%s, %s, %s, %s, jsonb_build_object('language', 'en'), %s) RETURNING id",
        f"{first}.{last}.{shop.dice.randrange(10**6)}@example.com",
        f"{first} {last}",
        shop.dice.choice((None, "free", "plus")),
        shop.dice.randint(1, 12),
        note,
    )
    shop.customers = max(shop.customers, made[0][0])
    shop.run(
        "INSERT INTO addresses (customer_id, kind, street, city, postal_code, country_id) "
        "VALUES (%s, 'billing', %s, %s, %s, %s)",
        made[0][0],
        f"{shop.dice.choice(_STREETS)} {shop.dice.randint(1, 180)}",
        shop.dice.choice(_CITIES),
        f"{shop.dice.randrange(100000):05}",
        shop.dice.randint(1, 12),
    )


def change_balance(shop: Shop) -> None:
    """The most common update; the customer's long note is not touched and so not sent."""
    shop.run(
        "UPDATE customers SET balance = balance + %s WHERE id = %s",
        round(shop.dice.uniform(-50, 80), 2),
        shop.customer(),
    )


def change_tier(shop: Shop) -> None:
    """A customer takes another tier."""
    shop.run(
        "UPDATE customers SET tier = %s, preferences = preferences || '{\"marketing\": true}' WHERE id = %s",
        shop.dice.choice(("free", "plus", "business")),
        shop.customer(),
    )


def move_house(shop: Shop) -> None:
    """An address changes its street and city."""
    shop.run(
        "UPDATE addresses SET street = %s, city = %s WHERE customer_id = %s AND kind = 'billing'",
        f"{shop.dice.choice(_STREETS)} {shop.dice.randint(1, 180)}",
        shop.dice.choice(_CITIES),
        shop.customer(),
    )


def hand_over_address(shop: Shop) -> None:
    """A shipping address goes to another customer: both documents change."""
    shop.run(
        "UPDATE addresses SET customer_id = new.id FROM customers AS new "
        "WHERE new.id = %s AND addresses.customer_id = %s AND kind = 'shipping'",
        shop.customer(),
        shop.customer(),
    )


def tag_customer(shop: Shop) -> None:
    """A tag is put on a customer; one that is already there is refreshed."""
    shop.run(
        "INSERT INTO customer_tags (customer_id, tag_id) SELECT id, %s FROM customers WHERE id = %s "
        "ON CONFLICT (customer_id, tag_id) DO UPDATE SET added_at = now()",
        shop.dice.randint(1, 12),
        shop.customer(),
    )


def untag_customer(shop: Shop) -> None:
    """A customer's tags go."""
    shop.run("DELETE FROM customer_tags WHERE customer_id = %s AND tag_id %% 2 = 0", shop.customer())


def change_price(shop: Shop) -> None:
    """A product's price changes, which every document that shows the product follows."""
    shop.run(
        "UPDATE products SET price = round(price * %s::numeric, 2) WHERE id = %s",
        shop.dice.uniform(0.9, 1.1),
        shop.dice.randint(1, 250),
    )


def leave(shop: Shop) -> None:
    """A customer is deleted, with addresses, orders, items and tags."""
    shop.run("DELETE FROM customers WHERE id = %s", shop.customer())


def close_account(shop: Shop) -> None:
    """A customer is marked as deleted, or comes back."""
    shop.run(
        "UPDATE customers SET deleted_at = CASE WHEN deleted_at IS NULL THEN now() END WHERE id = %s",
        shop.customer(),
    )


def change_mind(shop: Shop) -> None:
    """A transaction that is rolled back leaves no trace."""
    shop.run("UPDATE customers SET balance = 0")
    raise psycopg.Rollback


def write_note(shop: Shop) -> None:
    """A long note is written again, with other text."""
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
"""What happens in the shop, and how often in relation to the rest."""

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
    """Keep the shop busy; returns the number of committed transactions.

    Args:
        dsn: the shop's database.
        seconds: how long.
        rate: transactions per second; fewer where the server cannot keep up.
        stop: ends it early.
        committed: is told the number so far, now and then.
        seed: of the dice, so that a run can be had again.
        spared: rows to leave alone.
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
        begun = time.monotonic()
        while not stop.is_set() and time.monotonic() - begun < seconds:
            count += 1
            action = (
                change_mind if count % _ROLLED_BACK_EVERY == 0 else shop.dice.choices(actions, weights)[0]
            )
            with connection.transaction():
                action(shop)
            shop.done[action.__name__] = shop.done.get(action.__name__, 0) + 1
            if count % 10 == 0:
                committed(count)
                stop.wait(max(0.0, begun + count / rate - time.monotonic()))
    committed(count)
    return count
