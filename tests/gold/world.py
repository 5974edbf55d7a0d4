"""The shop, its lake, and gold over it, compared with documents assembled in plain Python."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from bronze.control_tables import ControlTables
from bronze.lake import Lake
from gold.cycle import Gold
from gold.plans import SMALL_PLAN
from gold.tree import resolve
from silver.sessions import settings
from tests.gold.reference import Reference
from tests.gold.shop import SHAPES, Shop, catalog, fill, moment, money
from tests.gold.shop_documents import SNIPPETS, document

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession

    from bronze.control import Cut, Run
    from gold.documents import Document

KEYS = {name: key for name, (_, key) in SHAPES.items()}
OWN = {"_commit_lsn", "_content_hash", "_key"}

Documents = dict[tuple[Any, ...], dict[str, Any]]


def plain(value: Any) -> Any:
    """Spark's values as the reference has them."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, Decimal):
        return value.normalize()
    return value


class World:
    """The shop, its lake, and gold."""

    def __init__(self, spark: SparkSession, path: str, texts: Iterable[str]) -> None:
        self.lake = Lake(path=path)
        self.spark = spark
        self.control = ControlTables(self.lake)
        self.shop = Shop(self.lake, self.control)
        fill(self.shop)
        self.documents = [document(text) for text in texts]
        self.gold = self.start_gold(self.documents)

    def start_gold(self, documents: Sequence[Document]) -> Gold:
        """Gold as a new process would start it."""
        return Gold(self.spark, self.lake, documents, catalog, self.control)

    def table(self, name: str) -> Documents:
        """Rows of a gold table by key."""
        with settings(self.spark, SMALL_PLAN):
            rows = self.spark.sql(f"SELECT * FROM {self.lake.sql('gold', name)}").collect()
        found: Documents = {}
        (doc,) = (doc for doc in self.documents if doc.name == name)
        tree, _ = resolve(doc, catalog())
        assert tree is not None
        for row in (row.asDict(recursive=True) for row in rows):
            held = row if tree.key_fields else row["_key"]
            key = tuple(held[field] for field in tree.key_fields or tree.key)
            assert key not in found, "a document stands twice"
            found[key] = row
        return found

    def runs(self) -> dict[str, Run]:
        """The newest run of each document."""
        found: dict[str, Run] = {}
        for run in self.control.runs("gold"):
            found.setdefault(run.name, run)
        return found

    def check(self) -> None:
        """Every gold table against the reference."""
        for doc in self.documents:
            reference = Reference(doc.definition, self.shop.rows, KEYS, SNIPPETS)
            actual = {
                key: {name: value for name, value in row.items() if name not in OWN}
                for key, row in self.table(doc.name).items()
            }
            assert plain(actual) == plain(reference.documents()), doc.name

    def step(self, change: Callable[[Shop], Any]) -> dict[str, Run]:
        """Change the shop, commit, run gold, check; returns the runs."""
        change(self.shop)
        cut = self.shop.commit()
        self.cycle(cut)
        self.check()
        return self.runs()

    def cycle(self, cut: Cut) -> None:
        """Run gold and see that it reached the cut."""
        gold_cut = self.gold.cycle()
        assert self.control.open_errors() == []
        assert gold_cut is not None
        assert gold_cut.commit_lsn == cut.commit_lsn
        assert set(gold_cut.tables) == {doc.name for doc in self.documents}


def mutate(shop: Shop, source: random.Random) -> None:
    """One random insert, update, delete or key change."""
    name = source.choice(list(SHAPES))
    rows, (columns, key) = shop.rows[name], SHAPES[name]
    kind = source.choice(["insert", "update", "update", "delete", "rekey"])
    if not rows or kind == "insert":
        fresh: dict[str, Any] = {column: value(column, columns[column], source) for column in columns}
        fresh.update({column: value(column, columns[column], source, keep=True) for column in key})
        shop.put(name, **fresh)
        return
    identity = source.choice(list(rows))
    if kind == "delete":
        shop.remove(name, *identity)
    elif kind == "rekey":
        moved = {**rows[identity], key[0]: value(key[0], columns[key[0]], source, keep=True)}
        shop.remove(name, *identity)
        shop.put(name, **moved)
    else:
        column = source.choice([column for column in columns if column not in key])
        shop.put(name, **{**rows[identity], column: value(column, columns[column], source)})


def value(column: str, kind: str, source: random.Random, *, keep: bool = False) -> Any:  # noqa: PLR0911 - one per kind
    if not keep and source.random() < 0.15:
        return None
    if kind in {"int2", "int4", "int8"}:
        return source.randint(1, 12)
    if kind == "text":
        return source.choice(["paid", "cancelled", "placed", "old", "vip", "IT", "DE"])
    if kind == "numeric":
        return money(f"{source.randint(0, 9)}.25")
    if kind == "float8":
        return source.choice([0.1, 0.2, 0.7, 1e15])
    if kind == "bool":
        return source.random() < 0.5
    found = moment(source.randint(0, 5))
    return found.date() if kind == "date" else found
