"""The shop, its lake with real silver, and gold, compared with documents assembled in plain Python."""

from __future__ import annotations

import shutil
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.gold.cycle import Gold
from deltasmelt.gold.tree.resolve import resolve
from deltasmelt.pipelines.runtime.stages import record_definitions
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.silver.settings import SilverSettings
from tests.fix_spark import rows_of
from tests.gold.plain_reference import Reference
from tests.gold.shop import SHAPES, Shop, fill, moment, money
from tests.gold.shop_documents import SNIPPETS, document

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control import Cut, Run
    from deltasmelt.gold.language.document import Document
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.silver.schema.catalog import SilverTable
    from tests.gold.shop import Shapes

OWN = {"_commit_lsn", "_content_hash", "_key"}

Documents = dict[tuple[Any, ...], dict[str, Any]]


def plain(value: Any) -> Any:
    """Return Spark's values in the form of the reference."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, Decimal):
        return value.normalize()
    return value


def contents(documents: Documents) -> Any:
    """Return documents without gold's own columns, in the form of the reference."""
    return plain(
        {
            key: {name: value for name, value in row.items() if name not in OWN}
            for key, row in documents.items()
        }
    )


@dataclass(frozen=True)
class Model:
    """The parts of a world.

    Attributes:
        shapes: the tables; if all tables are the shop's, the world fills the tables.
        snippets: the meaning of SQL texts in the documents.
        silver: settings of silver.
        tiny: as in `Shop`.
    """

    shapes: Shapes = field(default_factory=lambda: SHAPES)
    snippets: Mapping[str, Callable[[dict[str, Any]], Any]] = field(default_factory=lambda: SNIPPETS)
    silver: SilverSettings = field(default_factory=SilverSettings)
    tiny: bool = False


class World:
    """The shop, its lake, and gold."""

    def __init__(
        self, spark: SparkSession, path: str | Lake, texts: Iterable[str], model: Model | None = None
    ) -> None:
        self.lake = path if isinstance(path, Lake) else Lake(path=path)
        self.spark = spark
        self.control = ControlTables(self.lake)
        self.model = model or Model()
        self.shop = Shop(
            spark,
            self.lake,
            self.control,
            self.model.shapes,
            settings=self.model.silver,
            tiny=self.model.tiny,
        )
        if self.model.shapes.items() <= SHAPES.items():
            fill(self.shop)
        self.define(texts)

    def define(self, texts: Iterable[str]) -> None:
        """Define these documents, and start gold like a new process."""
        self.texts = {document(text).name: text for text in texts}
        self.documents = [document(text) for text in self.texts.values()]
        self.started: list[Gold] = []
        self.gold = self.start_gold(self.documents)

    def copied(self, path: Path) -> World:
        """Return a world over a copy of the lake, where gold continues alone."""
        shutil.copytree(str(self.lake.path), path)
        twin = copy(self)
        twin.lake = Lake(path=str(path))
        twin.control = ControlTables(twin.lake)
        twin.gold = twin.start_gold(twin.documents)
        return twin

    def catalog(self) -> dict[TableName, SilverTable]:
        return self.shop.catalog()

    def start_gold(self, documents: Sequence[Document], control: ControlTables | None = None) -> Gold:
        """Start gold like a new process."""
        control = control or self.control
        record_definitions(control, [doc.name for doc in documents])
        self.started.append(Gold(self.spark, self.lake, documents, self.catalog, control))
        return self.started[-1]

    def table(self, name: str) -> Documents:
        """Return rows of a gold table by key, read without Spark, in a hundredth of Spark's time."""
        if self.lake.path is None:
            return self.table_by_spark(name)
        from deltalake import DeltaTable, QueryBuilder  # noqa: PLC0415 - a lake in a catalog needs none

        query = QueryBuilder().register("t", DeltaTable(self.lake.uri("gold", name)))
        rows = pa.table(query.execute("SELECT * FROM t").read_all())
        return self._by_key(name, rows.to_pylist(maps_as_pydicts="strict"))

    def table_by_spark(self, name: str) -> Documents:
        """Return rows like `table`, read by Spark."""
        rows = rows_of(self.spark, f"SELECT * FROM {self.lake.sql('gold', name)}")
        return self._by_key(name, [row.asDict(recursive=True) for row in rows])

    def _by_key(self, name: str, rows: Iterable[dict[str, Any]]) -> Documents:
        documents: Documents = {}
        (doc,) = (doc for doc in self.documents if doc.name == name)
        tree, _ = resolve(doc, self.catalog())
        assert tree is not None
        for row in rows:
            key_row = row if tree.key_fields else row["_key"]
            key = tuple(key_row[field] for field in tree.key_fields or tree.key)
            assert key not in documents, "a document stands twice"
            documents[key] = row
        return documents

    def reference(self, doc: Document) -> Reference:
        """Return the reference of the documents in plain Python."""
        keys = {name: key for name, (_, key) in self.shop.shapes.items()}
        return Reference(doc.definition, self.shop.rows, keys, self.model.snippets)

    def runs(self) -> dict[str, Run]:
        """Return the newest run of each document; for runs of this process even a run without work."""
        newest: dict[str, Run] = {}
        own_runs = [run for gold in self.started for run in gold.runs]
        for run in sorted(
            [*own_runs, *self.control.runs("gold")], key=lambda run: run.started_at, reverse=True
        ):
            newest.setdefault(run.name, run)
        return newest

    def check(self, names: Iterable[str] | None = None) -> None:
        """Compare every gold table, or the tables of some documents, with the reference."""
        checked = self.names if names is None else list(names)
        for doc in (doc for doc in self.documents if doc.name in checked):
            assert contents(self.table(doc.name)) == plain(self.reference(doc).documents()), doc.name

    def first(self) -> None:
        """Build all documents for the first time."""
        self.step(lambda _: None, full=dict.fromkeys(self.names, "first build"))

    @property
    def names(self) -> list[str]:
        return [doc.name for doc in self.documents]

    def step(self, change: Callable[[Shop], Any], *, full: Mapping[str, str] | None = None) -> dict[str, Run]:
        """Change the shop, run silver and gold, and check; return the runs. `full` as in `cycle`."""
        change(self.shop)
        self.cycle(self.shop.commit(), full=full)
        self.check()
        return self.runs()

    def cycle(self, cut: Cut, *, full: Mapping[str, str] | None = None) -> None:
        """Run gold and check that gold reached the cut, with each document built by its changes alone.

        Args:
            cut: the newest cut of silver.
            full: documents built in full, each with a part of the reason's text.
        """
        gold_cut = self.gold.cycle()
        errors = [(error.name, error.message) for error in self.control.open_errors()]
        assert errors == [], errors
        assert gold_cut is not None
        assert gold_cut.commit_lsn == cut.commit_lsn
        assert set(gold_cut.tables) == set(self.names)
        runs = self.runs()
        for name in self.names:
            run = runs[name]
            assert run.to_lsn == cut.commit_lsn, name
            reason = (full or {}).get(name)
            if reason is None:
                assert run.mode in {"incremental", "none"}, (name, run.reason)
            else:
                assert run.mode == "full", name
                assert reason in str(run.reason), (name, run.reason)


def pipeline_of(world: World, folder: Path) -> Pipeline:
    """Write a user's pipeline file over the world's lake and documents; no server listens at its DSN."""
    for doc in world.documents:
        (folder / f"{doc.name}.yml").write_text(world.texts[doc.name])
    lake = f"path: '{world.lake.path}'" if world.lake.catalog is None else f"catalog: {world.lake.catalog}"
    file = folder / "pipeline.yaml"
    file.write_text(
        "pipeline: p\nsource: {dsn: 'postgresql://127.0.0.1:1/x', slot: s, publication: p}\n"
        f"lake: {{{lake}}}\ngold: {{documents: ['*.yml']}}\n"
    )
    pipeline = load_pipeline(file)
    pipeline.lake_address().place.serve(lambda: world.spark)
    return pipeline


def mutate(shop: Shop, source: random.Random, *, most: int = 12) -> None:
    """Make one random insert, update, delete or key change. Whole numbers reach up to `most`."""
    name = source.choice(list(shop.shapes))
    rows, (columns, key) = shop.rows[name], shop.shapes[name]

    def fresh(column: str) -> Any:
        return value(columns[column], source, most=most, keep=column in key)

    kind = source.choice(["insert", "update", "update", "delete", "rekey"])
    if not rows or kind == "insert":
        shop.put(name, **{column: fresh(column) for column in columns})
        return
    identity = source.choice(list(rows))
    if kind == "delete":
        shop.remove(name, *identity)
    elif kind == "rekey":
        shop.rekey(name, identity, **{key[0]: fresh(key[0])})
    else:
        column = source.choice([column for column in columns if column not in key])
        shop.put(name, **{**rows[identity], column: fresh(column)})


def value(kind: str, source: random.Random, *, most: int, keep: bool) -> Any:  # noqa: PLR0911 - one per kind
    """Return a random value of a type; at times NULL, unless `keep`."""
    if not keep and source.random() < 0.15:
        return None
    if kind in {"int2", "int4", "int8"}:
        return source.randint(1, most)
    if kind == "text":
        return source.choice(["paid", "cancelled", "placed", "old", "vip", "IT", "DE"])
    if kind == "numeric":
        return money(f"{source.randint(0, 9)}.25")
    if kind == "float8":
        return source.choice([0.1, 0.2, 0.7, 1e15])
    if kind == "bool":
        return source.random() < 0.5
    at = moment(source.randint(0, 5))
    return at.date() if kind == "date" else at
