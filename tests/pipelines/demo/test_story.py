"""The demo's changes at the source, and the moment when each counts as seen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.demo.live import Preparation, change_text
from deltasmelt.pipelines.demo.story import Story
from deltasmelt.pipelines.private import conf_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


@pytest.fixture
def shop(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute((conf_folder() / "demo" / "shop.sql").read_bytes())
        yield connection


@pytest.mark.postgres
def test_acts_make_announced_changes_and_count_visible_rows(
    shop: psycopg.Connection[Any],
) -> None:
    """The acts count only changes already visible in the lake."""
    story = Story(shop)
    customer, second_customer = sorted(story.spared.customers)
    story.first_act()
    assert story.order is not None
    assert story.spared.orders == {story.order.order}
    assert shop.execute("SELECT total > 0 FROM orders WHERE id = %s", [story.order.order]).fetchone() == (
        True,
    )
    assert not all(change.through for change in story.followed)
    killed: list[bool] = []
    story.second_act(lambda: killed.append(True))
    assert killed == [True]
    assert shop.execute("SELECT count(*) FROM customer_tags").fetchone() == (0,)
    assert shop.execute("SELECT count(*) FROM customers WHERE id = %s", [second_customer]).fetchone() == (0,)
    assert shop.execute("SELECT points FROM customers WHERE id = %s", [customer]).fetchone() == (42,)

    places = [change.position for change in story.followed]
    assert places == sorted(set(places))
    assert len(places) == 5
    story.reached("bronze", places[1])
    assert [set(change.seconds) for change in story.followed[:3]] == [{"bronze"}, {"bronze"}, set()]
    for layer in ("bronze", "silver", "gold"):
        story.reached(layer, Lsn(places[-1] + 1))
    assert all(change.through for change in story.followed)

    rows: dict[str, dict[str, object]] = {
        "bronze": {"new": {"id": str(story.order.order)}},
        "silver": {"id": story.order.order, "customer_id": customer},
        "gold": {
            "orders": [{"id": story.order.order, "items": [{"product": {"name": story.order.product}}]}]
        },
    }

    def lake(statement: str) -> list[str]:
        return [json.dumps(next(row for name, row in rows.items() if f"FROM {name}." in statement))]

    assert set(story.find_order(lake)) == {"bronze", "silver", "gold"}
    assert story.followed[0].arrived
    rows["gold"]["orders"] = [{"id": 1, "items": [{"product": {"name": "another"}}]}]
    assert set(story.find_order(lake)) == {"bronze", "silver"}
    assert not story.followed[0].arrived
    assert "NOT FOUND" in change_text(story.followed[0])

    story.find_rest(lambda _: [json.dumps({"c0": True, "c1": True, "c2": False})])  # c3: NULL
    assert [change.arrived for change in story.followed[1:]] == [True, True, False, False]


def test_preparation_is_reported_once_and_completely() -> None:
    preparation = Preparation(("one", "two"))
    assert preparation.done("one", "3 rows")
    assert not preparation.done("one", "4 rows")
    assert not preparation.complete
    assert preparation.text("one") == "one: 3 rows (0 s)"
    assert preparation.done("two")
    assert preparation.complete
    assert preparation.text("two") == "two (0 s)"
