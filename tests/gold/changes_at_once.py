"""Changes of the shop, run at once, each on separate rows, and the documents that each change reaches.

Each scenario has a hundred numbers for its rows: customers, orders, addresses, countries and tags. So one
cycle of silver and gold carries all scenarios, and the cycle's counts are sums over the scenarios.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.gold.shop import moment, money

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.lake.control import Run
    from tests.gold.shop import Key, Shop
    from tests.gold.world import Documents, World


@dataclass(frozen=True)
class Scenario:
    """Rows and their changes.

    Attributes:
        name: describes the case.
        hundred: the hundred of the numbers of its rows.
        before: creates the rows.
        changes: the changes of the rows, divided by silver's cuts.
        reached: by document, the keys of all documents that gold must build; gold may build no other.
        same: the reached documents whose content stays the same.
    """

    name: str
    hundred: int
    before: Callable[[Shop], None]
    changes: tuple[Callable[[Shop], None], ...]
    reached: dict[str, set[Key]]
    same: dict[str, set[Key]] = field(default_factory=dict)

    def own(self, key: Key) -> bool:
        """Check whether a document's root is a row of this scenario."""
        return bool(key[0] // 100 * 100 == self.hundred)


def roots(*numbers: int) -> set[Key]:
    """Return keys of one column."""
    return {(number,) for number in numbers}


def person(shop: Shop, *numbers: int, **values: Any) -> None:
    for number in numbers:
        shop.put("customers", id=number, email=f" User{number}@Example.com", balance=money("1.50"), **values)


def order(shop: Shop, number: int, customer: int | None, *, lines: int = 1, **values: Any) -> None:
    """Put an order with its lines, by default paid."""
    order_values = {"status": "paid", "total": money("2.25"), "placed_at": moment(1), **values}
    shop.put("orders", id=number, customer_id=customer, **order_values)
    for line in range(1, lines + 1):
        shop.put("order_items", order_id=number, line=line, product_id=line, sku=f"S{line}", qty=line)


def _children_before(shop: Shop) -> None:
    for number, code in ((101, "AA"), (102, "BB"), (103, "IT")):
        shop.put("countries", id=number, code=code, name=f"Country {number}")
        person(shop, number, country_id=number)
    order(shop, 101, 101, lines=2)
    order(shop, 102, 101, status="cancelled")
    order(shop, 103, 102)


def _children(shop: Shop) -> None:
    shop.remove("order_items", 101, 1)
    shop.remove("order_items", 102, 1)  # in an order that the document leaves out
    shop.put("orders", id=103, customer_id=103)  # from customer 102


def _unseen_before(shop: Shop) -> None:
    # Beyond the limit of three orders, gold reads an order and does not show the order.
    person(shop, 201)
    for number in range(201, 205):
        order(shop, number, 201, lines=0, status="placed", placed_at=moment(number))


def _unseen(shop: Shop) -> None:
    shop.put("order_items", order_id=201, line=1, product_id=1, sku="new", qty=1)


def _middles_before(shop: Shop) -> None:
    person(shop, 301, 302)
    order(shop, 301, 301, lines=2)
    order(shop, 302, 302, lines=2)
    shop.put("logistics.parcels", id=301, order_id=301, line=2, weight=0.1, carrier="old")


def _middles(shop: Shop) -> None:
    shop.put("orders", id=301, customer_id=302)
    shop.put("order_items", order_id=301, line=1, product_id=2, sku="moved", qty=9)
    shop.put("logistics.parcels", id=301, line=1, weight=7.5, carrier="new")
    shop.rekey("orders", (302,), id=312)
    shop.rekey("order_items", (302, 1), order_id=312)


def _links_before(shop: Shop) -> None:
    person(shop, 401, 402, 403, 404)
    for tag in (401, 402, 403):
        shop.put("tags", id=tag, name="vip")
    links = ((401, 401), (401, 402), (402, 402), (403, 401), (403, 403), (404, 402))
    for customer, tag in links:
        shop.put("customer_tags", customer_id=customer, tag_id=tag, added_at=moment(tag), active=True)


def _links(shop: Shop) -> None:
    shop.remove("customer_tags", 401, 401)
    shop.put("customer_tags", customer_id=402, tag_id=401, added_at=moment(50), active=True)
    shop.put("customer_tags", customer_id=403, tag_id=401, active=False)
    shop.put("tags", id=402, name="old")  # to be filtered out; nothing else happens to customer 404
    shop.put("tags", id=403, name="young")


def _swap_before(shop: Shop) -> None:
    shop.put("addresses", id=501, city="One", country_id=1)
    shop.put("addresses", id=502, city="Other", country_id=2)
    person(shop, 501, billing_id=501, shipping_id=502)
    person(shop, 502, billing_id=502)


def _swap(shop: Shop) -> None:
    first, second = shop.remove("addresses", 501), shop.remove("addresses", 502)
    shop.put("addresses", **{**first, "id": 502})
    shop.put("addresses", **{**second, "id": 501})


def _roots_before(shop: Shop) -> None:
    for number, code in ((601, "AA"), (602, "IT"), (603, "CC")):
        shop.put("countries", id=number, code=code, name=f"Country {number}")
    person(shop, 601, 602, 604)
    person(shop, 603, deleted_at=moment(90))
    person(shop, 605, country_id=601)


def _roots(shop: Shop) -> None:
    shop.rekey("customers", (601,), id=611)
    shop.put("customers", id=612, email="new@example.com", country_id=603, billing_id=3)
    shop.remove("customers", 602)
    shop.put("customers", id=603, deleted_at=None)
    shop.put("customers", id=604, deleted_at=moment(99))
    shop.put("countries", id=601, code="IT")
    shop.put("countries", id=602, code="FR")


def _several_before(shop: Shop) -> None:
    shop.put("countries", id=701, code="AA", name="Joined")
    shop.put("countries", id=702, code="BB", name="Left")
    for number in range(701, 705):
        person(shop, number, country_id=702)
        order(shop, number, number)


def _several(shop: Shop) -> None:
    for number in range(701, 705):
        shop.put("customers", id=number, country_id=701, email=f"again{number}@example.com")
        shop.put("order_items", order_id=number, line=1, sku="again", qty=9)


def _places_before(shop: Shop) -> None:
    for number in (801, 802):
        shop.put("countries", id=number, code="AA", name=f"Country {number}")
    for number in range(801, 805):
        shop.put("addresses", id=number, city=f"City {number}", country_id=801)
    person(shop, 801, 805, 806)
    person(shop, 802, referred_by=801)
    person(shop, 803, billing_id=801, shipping_id=802, country_id=801, tier="gold")
    person(shop, 804, billing_id=804)
    order(shop, 801, 804, lines=2)
    order(shop, 802, None)
    order(shop, 803, 806, placed_at=None)
    order(shop, 804, 806)
    for number in (801, 802, 803):
        weight = None if number == 803 else 0.1
        shop.put("logistics.parcels", id=number, order_id=801, line=1, weight=weight, carrier="dhl")


def _places(shop: Shop) -> None:
    shop.put("customers", id=801, email="referrer@example.com", referred_by=803)
    shop.put("customers", id=803, billing_id=803, shipping_id=803)
    shop.put("addresses", id=803, city="Both", country_id=802)
    shop.put("addresses", id=804, city="Gone")
    shop.put("logistics.parcels", id=801, order_id=None)
    shop.put("logistics.parcels", id=802, line=2)
    shop.put("logistics.parcels", id=803, weight=0.30000000000000004)
    shop.put("orders", id=802, customer_id=805)
    shop.put("orders", id=803, placed_at=moment(3))
    shop.put("orders", id=804, placed_at=None, status=None)
    shop.put("customers", id=803, country_id=None, tier=None)


def _steps_before(shop: Shop) -> None:
    person(shop, 901, 902, 903, 905)
    order(shop, 901, 901)
    shop.put("tags", id=901, name="vip")
    shop.put("customer_tags", customer_id=905, tag_id=901, added_at=moment(1), active=True)


def _first_step(shop: Shop) -> None:
    shop.put("orders", id=901, customer_id=902)
    person(shop, 904)
    shop.put("tags", id=901, name="changed")


def _last_step(shop: Shop) -> None:
    shop.put("orders", id=901, customer_id=903)
    shop.remove("customers", 904)
    shop.put("tags", id=901, name="vip")  # as it was


SCENARIOS: Final = (
    Scenario(
        "a child deleted and a child moved rebuild the old and the new parent",
        100,
        _children_before,
        (_children,),
        {
            "customer": roots(101, 102, 103),
            "parcel_line": {(101, 1), (102, 1), (103, 1)},
            "country": roots(102, 103),
        },
    ),
    Scenario(
        "a document that is rebuilt to the same content is not written again",
        200,
        _unseen_before,
        (_unseen,),
        {"customer": roots(201), "parcel_line": {(201, 1)}},
        same={"customer": roots(201)},
    ),
    Scenario(
        "middle rows move with their leaves",
        300,
        _middles_before,
        (_middles,),
        {"customer": roots(301, 302), "parcel_line": {(301, 1), (301, 2), (302, 1), (302, 2), (312, 1)}},
    ),
    Scenario("links change", 400, _links_before, (_links,), {"customer": roots(401, 402, 403, 404)}),
    Scenario("two rows swap their keys", 500, _swap_before, (_swap,), {"customer": roots(501, 502)}),
    Scenario(
        "roots rekeyed, inserted, deleted, and entering and leaving the filter",
        600,
        _roots_before,
        (_roots,),
        {"customer": roots(601, 602, 603, 604, 605, 611, 612), "country": roots(601, 602, 603)},
    ),
    Scenario(
        "several children of one root change and it is built once",
        700,
        _several_before,
        (_several,),
        {
            "customer": roots(701, 702, 703, 704),
            "parcel_line": {(701, 1), (702, 1), (703, 1), (704, 1)},
            "country": roots(701, 702),
        },
    ),
    Scenario(
        "self-joins, two places, composite keys, and values that become NULL and come back",
        800,
        _places_before,
        (_places,),
        {
            "customer": roots(801, 802, 803, 804, 805, 806),
            "parcel_line": {(801, 1), (801, 2), (802, 1), (804, 1)},
            "country": roots(801),
        },
    ),
    Scenario(
        "several cuts at once count by their first and last image",
        900,
        _steps_before,
        (_first_step, _last_step),
        {"customer": roots(901, 903), "parcel_line": {(901, 1)}},
    ),
)
"""Between two cuts customer 902 had an order, and 904 existed; the tag of 905 is unchanged."""

BY_PLACE: Final = {
    "customer": {
        "public.customers": 12,
        "account.home: public.addresses": 4,
        "country: public.countries": 1,
        "billing: public.addresses": 4,
        "billing.country: public.countries": 0,
        "shipping: public.addresses": 2,
        "referrer: public.customers": 1,
        "referred: public.customers": 1,
        "orders: public.orders": 8,
        "orders.items: public.order_items": 7,
        "orders.items.parcels: logistics.parcels": 2,
        "orders.pieces: public.order_items": 7,
        "first_order: public.orders": 8,
        "order_count: public.orders": 8,
        "placements: public.orders": 8,
        "tags: public.tags": 4,
        "tags: public.customer_tags": 3,
        "tag_names: public.tags": 4,
        "tag_names: public.customer_tags": 2,
        "tag_count: public.tags": 4,
        "tag_count: public.customer_tags": 2,
    },
    "parcel_line": {
        "public.order_items": 5,
        "weight: logistics.parcels": 4,
        "order: public.orders": 8,
        "order.customer: public.customers": 4,
    },
    "country": {"public.countries": 2, "people: public.customers": 4, "people.bought: public.orders": 2},
}
"""Number of documents that each place with changed rows reaches, over all scenarios.

A root with a new foreign key counts only at the root: the row referenced before is unchanged.
"""


@dataclass(frozen=True)
class Joint:
    """One cycle of gold over the changes of all scenarios.

    Attributes:
        lsn: of its cut.
        runs: one for each document.
        before: the documents before the cycle.
        after: the documents after the cycle.
        wanted: the documents assembled in plain Python.
    """

    lsn: int
    runs: dict[str, Run]
    before: dict[str, Documents]
    after: dict[str, Documents]
    wanted: dict[str, Documents]


def play(world: World) -> Joint:
    """Cut silver after each part of the changes; then run gold once, by the changes alone."""
    before = {name: world.table(name) for name in world.names}
    for part in range(max(len(scenario.changes) for scenario in SCENARIOS)):
        for scenario in SCENARIOS:
            for change in scenario.changes[part : part + 1]:
                change(world.shop)
        cut = world.shop.commit()
    world.cycle(cut)
    after = {name: world.table(name) for name in world.names}
    expected = {doc.name: world.reference(doc).documents() for doc in world.documents}
    return Joint(cut.commit_lsn, world.runs(), before, after, expected)
