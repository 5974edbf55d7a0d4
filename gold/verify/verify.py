"""Check whether a document's table equals a full rebuild at the table's recorded cut.

Both sides are in the past: the gold table at the version in the newest gold cut, and silver at the cut of the
same LSN. So stages may work meanwhile. With a sample, both sides read the same fraction of keys, so the check
finds surplus documents as well as missing documents.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.gold.builder.build import CutViews
from deltasmelt.gold.builder.spark_settings import HASH, LSN, SORTED, content_hash
from deltasmelt.gold.compile.clauses import numbered
from deltasmelt.gold.compile.compiler import compile_tree
from deltasmelt.silver.spark.access import child_session, computed
from deltasmelt.silver.spark.small_reads import table_at
from deltasmelt.silver.spark.tuning import settings
from deltasmelt.silver.sql import as_json, quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.gold.compile.query import Compiled
    from deltasmelt.gold.tree.nodes import Tree

_LENGTH: Final = 120
"""Number of characters of a value that messages show."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A place at which two documents differ.

    Attributes:
        path: fields from the document down, ``orders[2].items[0].sku``; elements count from 0.
        stored, rebuilt: the two documents' values at this place, as JSON; None without a value.
    """

    path: str
    stored: str | None
    rebuilt: str | None


def first_difference(stored: str, rebuilt: str) -> Difference | None:
    """Return the first place, in the order of the fields, at which documents differ; None if equal."""
    return _between(_read(stored), _read(rebuilt), "")


def _read(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def _between(stored: Any, rebuilt: Any, path: str) -> Difference | None:
    left, right = _parts(stored, path), _parts(rebuilt, path)
    if left is None or right is None or isinstance(stored, dict) != isinstance(rebuilt, dict):
        is_equal = type(stored) is type(rebuilt) and stored == rebuilt
        return None if is_equal else Difference(path, _text(stored), _text(rebuilt))
    for place in dict.fromkeys([*left, *right]):
        if place not in left or place not in right:
            shown = [_text(parts[place]) if place in parts else None for parts in (left, right)]
            return Difference(place, *shown)
        difference = _between(left[place], right[place], place)
        if difference is not None:
            return difference
    # A map with its entries in another order has different content.
    return None if [*left] == [*right] else Difference(path, _text(stored), _text(rebuilt))


def _parts(value: Any, path: str) -> dict[str, Any] | None:
    """Return the members of an object or a list, by path; None for any other value."""
    if isinstance(value, dict):
        return {f"{path}.{name}" if path else name: inner for name, inner in value.items()}
    if isinstance(value, list):
        return {f"{path}[{index}]": inner for index, inner in enumerate(value)}
    return None


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LENGTH else text[:_LENGTH] + "…"


KINDS: Final = {
    "twice": "exists more than once",
    "missing": "is missing",
    "surplus": "should not exist",
    "differs": "differs",
    "hash": "has a content hash that does not match its content",
    "lsn": "has a _commit_lsn that is missing or after the cut",
}
"""Possible faults of a document."""
_PARTS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Fault:
    """A wrong document.

    `key` is the root's key, as JSON; `kind` is a key of `KINDS`; `difference` is the first place, if any.
    """

    key: str
    kind: str
    difference: Difference | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """The result for one document type.

    Attributes:
        compared: the number of compared keys.
        counts: for each of the `KINDS` found: number of documents.
        first: the first wrong documents, by key.
    """

    document: str
    commit_lsn: int
    version: int
    compared: int
    counts: dict[str, int]
    first: tuple[Fault, ...]

    @property
    def equal(self) -> bool:
        """Whether the check found nothing wrong."""
        return not self.counts


@dataclass(frozen=True, slots=True)
class Built:
    """The inputs of a document's table: the resolved document and the silver cut; the table's version."""

    tree: Tree
    cut: Cut
    version: int


def verify(
    spark: SparkSession, lake: Lake, built: Built, *, sample: float | None = None, most: int = 5
) -> Verification:
    """Compare a version of a document's table with a rebuild from silver's cut, in a new session.

    `sample` is the fraction of keys to compare, above 0 and up to 1, None for all; `most` is the largest
    number of documents to report one by one.

    Raises:
        PySparkException: a version is no longer readable.
    """
    with child_session(spark) as session, settings(session, SORTED):
        return _Comparison(session, lake, built, sample).run(most)


class _Comparison:
    def __init__(self, spark: SparkSession, lake: Lake, built: Built, sample: float | None) -> None:
        self._spark = spark
        self._built = built
        self._tree = built.tree
        self._relation = CutViews(spark, lake).at(built.tree, built.cut)
        self._sample = sample
        self._stored = "stored"
        table_at(spark, lake, "gold", built.tree.name, built.version).createOrReplaceTempView(self._stored)
        self._keys = [f"k{i}" for i in range(len(built.tree.key))]

    def run(self, most: int) -> Verification:
        listed, lsn = ", ".join(self._keys), int(self._built.cut.commit_lsn)
        compiled = self._compiled(self._sampled_roots())
        # The hash is computed again on both sides. The stored hash is not trusted but compared too, because
        # later cycles decide by it what to write.
        content = f"{content_hash(compiled.columns)} AS content"
        rebuilt = f"SELECT {_numbered(compiled)}, {content} FROM (\n{compiled.sql}\n)"
        marks = f"any_value({HASH}) AS hash, any_value({LSN}) AS lsn"
        stored = (
            f"SELECT {listed}, any_value(content) AS content, {marks}, count(*) AS times FROM (\n"
            f"SELECT {_numbered(compiled)}, {content}, {HASH}, {LSN}\n"
            f"FROM {self._stored}{self._among(compiled.key)}\n) GROUP BY {listed}"
        )
        kind = (
            "CASE WHEN g.times > 1 THEN 'twice' WHEN g.times IS NULL THEN 'missing'\n"
            "WHEN r.content IS NULL THEN 'surplus' WHEN g.content <> r.content THEN 'differs'\n"
            "WHEN g.hash IS NULL OR g.hash <> g.content THEN 'hash'\n"
            f"WHEN g.lsn IS NULL OR g.lsn > {lsn}L THEN 'lsn' END"
        )
        keys = ", ".join(f"coalesce(r.{key}, g.{key}) AS {key}" for key in self._keys)
        joined = f"(\n{rebuilt}\n) AS r FULL JOIN (\n{stored}\n) AS g ON {self._on('r', 'g')}"
        compared = computed(self._spark.sql(f"SELECT {keys}, {kind} AS kind FROM {joined}"))
        compared.createOrReplaceTempView("compared")
        rows = self._spark.sql("SELECT kind, count(*) AS times FROM compared GROUP BY kind").collect()
        counts = {row["kind"]: int(row["times"]) for row in rows}
        differing = {kind: counts[kind] for kind in KINDS if kind in counts}
        first = self._first(most) if differing else ()
        return Verification(self._tree.name, lsn, self._built.version, sum(counts.values()), differing, first)

    def _compiled(self, roots: str | None) -> Compiled:
        """Return the documents that silver's cut gives."""
        return compile_tree(self._tree, self._relation, roots=roots)

    def _sampled_roots(self) -> str | None:
        if self._sample is None:
            return None
        names = [quote(name) for name in self._tree.key]
        rows = self._relation(self._tree.root.table.table)
        return f"(SELECT {', '.join(numbered(names))} FROM {rows}{self._among(names)})"

    def _among(self, key: Sequence[str]) -> str:
        """Return the condition for keys of the sample, by their text, which is the same on both sides."""
        if self._sample is None:
            return ""
        texts = ", ".join(f"CAST({name} AS STRING)" for name in key)
        return f" WHERE pmod(xxhash64({texts}), {_PARTS}) < {max(1, round(self._sample * _PARTS))}"

    def _on(self, first: str, second: str) -> str:
        return " AND ".join(f"{first}.{key} = {second}.{key}" for key in self._keys)

    def _first(self, most: int) -> tuple[Fault, ...]:
        """Return the first wrong documents, each with the place of the difference."""
        listed = ", ".join(self._keys)
        first_differing = (
            f"SELECT {listed}, kind FROM compared WHERE kind IS NOT NULL ORDER BY {listed} LIMIT {most}"
        )
        computed(self._spark.sql(first_differing)).createOrReplaceTempView("first_found")
        compiled = self._compiled("first_found")
        document = f"{as_json(map(quote, compiled.fields))} AS document"
        rebuilt = f"SELECT {_numbered(compiled)}, {document} FROM (\n{compiled.sql}\n)"
        stored = f"SELECT {_numbered(compiled)}, {document} FROM {self._stored}"
        key = as_json(f"f.k{i} AS {quote(name)}" for i, name in enumerate(self._tree.key))
        grouped = ", ".join(f"f.{key}" for key in self._keys)
        rows = self._spark.sql(
            f"SELECT {key} AS key,\n"
            "any_value(f.kind) AS kind, any_value(g.document) AS stored, any_value(r.document) AS rebuilt\n"
            f"FROM first_found AS f LEFT JOIN (\n{rebuilt}\n) AS r ON {self._on('f', 'r')}\n"
            f"LEFT JOIN (\n{stored}\n) AS g ON {self._on('f', 'g')}\nGROUP BY {grouped} ORDER BY {grouped}"
        ).collect()
        return tuple(
            Fault(
                row["key"],
                row["kind"],
                first_difference(row["stored"], row["rebuilt"]) if row["kind"] == "differs" else None,
            )
            for row in rows
        )


def _numbered(compiled: Compiled) -> str:
    return ", ".join(numbered(compiled.key))
