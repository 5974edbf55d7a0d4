from __future__ import annotations

import random
import threading

import psycopg
import pytest

from deltasmelt.pipelines.demo.workload import ACTIONS, Shop, run_workload
from deltasmelt.pipelines.private import conf_folder


@pytest.fixture
def shop_dsn(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute((conf_folder() / "demo" / "shop.sql").read_bytes())
    return database


@pytest.mark.postgres
def test_every_kind_of_change_keeps_shop_consistent(shop_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verbs: dict[str, int] = {}
    run = Shop.run

    def counting(shop: Shop, statement: str, *values: object) -> list[tuple[object, ...]]:
        verb = statement.split(maxsplit=1)[0]
        verbs[verb] = verbs.get(verb, 0) + 1
        return run(shop, statement, *values)

    monkeypatch.setattr(Shop, "run", counting)
    counts: list[int] = []
    transactions = run_workload(
        shop_dsn, seconds=4, rate=2000, stop=threading.Event(), committed=counts.append
    )
    assert counts[-1] == transactions
    assert transactions > 200
    assert verbs.keys() == {"INSERT", "UPDATE", "DELETE"}
    with psycopg.connect(shop_dsn) as connection:
        wrong = connection.execute(
            "SELECT count(*) FROM orders WHERE total <> coalesce((SELECT sum(qty * unit_price) "
            "FROM order_items WHERE order_id = orders.id), 0)"
        ).fetchone()
        emptied = connection.execute("SELECT count(*) FILTER (WHERE balance <> 0) FROM customers").fetchone()
    assert wrong == (0,)
    assert emptied is not None
    assert emptied[0] > 1000  # the rolled-back transactions left no trace


@pytest.mark.postgres
def test_each_action_works_whatever_the_dice_say(shop_dsn: str) -> None:
    with psycopg.connect(shop_dsn, autocommit=True) as connection:
        for seed in range(20):
            shop = Shop(connection, random.Random(seed), 2000, 4000)
            for action in ACTIONS:
                with connection.transaction():
                    action(shop)


@pytest.mark.postgres
def test_the_workload_ends_when_it_is_told_to(shop_dsn: str) -> None:
    stop = threading.Event()
    totals: list[int] = []

    def enough(committed: int) -> None:
        totals.append(committed)
        if committed >= 50:
            stop.set()

    run_workload(shop_dsn, seconds=600, rate=500, stop=stop, committed=enough)
    assert totals[-1] < 100
