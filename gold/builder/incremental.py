"""Build the documents that changed rows reach, and no further document.

The change feeds of silver's tables between two cuts give the old and the new images of changed rows. The
images give the affected roots (`gold.incremental.affected`). Gold assembles the roots' documents from the
cut's rows and merges all of them in one commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.lake.spark_errors import cause_of
from deltasmelt.gold.builder.failures import SPARK_ERRORS
from deltasmelt.gold.builder.gold_table import is_small, size_of
from deltasmelt.gold.builder.growth import Growth, growth_query
from deltasmelt.gold.builder.lost_values import note
from deltasmelt.gold.builder.memory import Sizes, assembly_plan
from deltasmelt.gold.builder.merging import ROOT, Merge, merge
from deltasmelt.gold.builder.sizing import LARGEST
from deltasmelt.gold.builder.spark_settings import (
    BYTES,
    HASH,
    INTERPRETED,
    LEAN,
    SINGLE_TASK,
    SORTED,
    content_hash,
    hash_and_bytes,
    partitions,
    read_by,
)
from deltasmelt.gold.builder.weights import Roots
from deltasmelt.gold.compile.compiler import compile_tree
from deltasmelt.gold.compile.query import FLAGS, counts_of, flag_column
from deltasmelt.gold.incremental.affected import CAME, PLACES, SIDE, Affected, affected_roots
from deltasmelt.gold.incremental.change_feed import ChangeFeedUnreadableError, recreated
from deltasmelt.gold.incremental.key_lists import LOOKED_UP, MOST_LISTED, lists_of, lists_query
from deltasmelt.gold.tree.derived import computed, may_be_lost, rows_of
from deltasmelt.silver.spark.failure_scope import outage
from deltasmelt.silver.spark.tuning import settings
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.gold.builder.build import Build, BuildContext
    from deltasmelt.gold.builder.images import SharedImages
    from deltasmelt.gold.builder.memory import Plan
    from deltasmelt.gold.compile.query import Compiled

# Planning and scheduling more tasks costs more than the work of so many rows.
_ONE_TASK: Final = 100_000
"""Number of rows up to which one task assembles documents."""

_BROADCAST: Final = 1_000_000
"""Number of affected roots up to which each task can have all keys in memory."""

_MATCHED: Final = 20_000
"""Number of documents up to which each task of a MERGE can have all documents in memory."""

_WALKED: Final = 20_000
"""Number of changed rows up to which Spark broadcasts the rows on the join paths to every task."""


_SUMS: Final = (f"coalesce(sum({BYTES}), 0) AS total", f"coalesce(max({BYTES}), 0) AS largest")
"""Aggregates of assembled documents: their bytes in all, and the bytes of the largest."""


@dataclass(frozen=True, slots=True)
class _Assembly:
    """The way in which a build assembles affected documents.

    Attributes:
        compiled: the document, restricted to the roots in the view ``affected``.
        reading: Spark settings for reading silver's tables.
        plan: how many documents memory holds at once.
        single_task: one task assembles all documents.
        no_inserts: whether no document is new.
        listed: literals of the roots' keys, if the roots are few and the tables large.
    """

    compiled: Compiled
    reading: Mapping[str, str]
    plan: Plan
    single_task: bool
    no_inserts: bool
    listed: Mapping[str, str]


class IncrementalBuild:
    """One build from an older cut, which the table holds.

    `is_same` checks whether a silver table holds the same rows at two versions; `shared` has the images of
    changed rows.
    """

    def __init__(
        self,
        work: BuildContext,
        build: Build,
        old: Cut,
        is_same: Callable[[str, int, int], bool],
        shared: SharedImages,
    ) -> None:
        self._work = work
        self._spark = work.spark
        self._build = build
        self._old = old
        self._is_same = is_same
        self._shared = shared
        self._grown: dict[TableName, Growth] = {}
        self._came = 0  # affected roots that may be new documents

    def run(self, largest: int | None) -> int | None:
        """Bring the table to the cut.

        `largest` and the result are the bytes of the largest document before and after; None if unknown.

        Raises:
            ChangeFeedUnreadableError: the changes between the cuts cannot be read.
            DefiniteError: a document has no room in memory.
            PySparkException: Spark refused the query, or failed to compute a value.
        """
        build, run = self._build, self._build.run
        run.mode = "incremental"
        rows = self._changed_rows()
        run.details["changed_rows"] = {str(name): count for name, (_, count) in rows.items()}
        views = {name: view for name, (view, _) in rows.items()}
        reading = INTERPRETED if is_small(build.sizes.values()) else LEAN
        affected = affected_roots(
            build.tree,
            views,
            views.__getitem__,
            build.relation,
            broadcast=sum(count for _, count in rows.values()) <= _WALKED,
        )
        if affected is not None:
            self._find_roots(affected, reading)
        if affected is None or run.changes == 0:
            run.mode = "none"
            return largest
        expected = self._expected_rows()
        single_task = expected <= _ONE_TASK
        listed = self._listed()
        reading = {**reading, **(LOOKED_UP if listed else {})}
        compiled = compile_tree(
            build.tree,
            build.relation,
            roots="affected",
            single_task=single_task,
            broadcast=expected <= _BROADCAST,
            listed=listed,
        )
        with settings(self._spark, reading):
            for step in compiled.shared:
                self._work.computed.keep(step.sql, step.name)
        plan, largest = self._work.sizing.of_some(
            build.tree,
            build.relation,
            build.sizes,
            roots=Roots("affected", frozenset(step.name for step in compiled.shared)),
            number=run.changes,
            grown=self._grown,
            known=largest,
            tasks=1 if single_task else self._work.tasks(),
        )
        if largest is not None:
            run.details[LARGEST] = largest
        no_inserts = run.changes <= _MATCHED and self._came == 0
        with self._work.room.reserve(plan.needed):
            self._assemble(_Assembly(compiled, reading, plan, single_task, no_inserts, listed))
        return largest

    def _changed_rows(self) -> dict[TableName, tuple[str, int]]:
        """Return, for each table with changed rows, the view of the images and their number."""
        old, new = self._old.tables, self._build.cut.tables
        tables = {name: table.name for name, table in self._build.tree.tables().items()}
        changed = {name: silver for name, silver in tables.items() if new[silver] != old[silver]}
        found: dict[TableName, tuple[str, int]] = {}
        for index, (name, silver_name) in enumerate(sorted(changed.items())):
            view = f"images_{index}"
            count = self._images(name, silver_name, (old[silver_name] + 1, new[silver_name]), view)
            if count:
                found[name] = view, count
        return found

    def _images(self, name: TableName, silver_name: str, between: tuple[int, int], view: str) -> int:
        """Register images of changed rows, at most one old and one new per key; return their number.

        Raises:
            ChangeFeedUnreadableError: the change feed cannot be read.
        """
        first, last = between
        if last < first:
            raise ChangeFeedUnreadableError(recreated(silver_name))
        tree = self._build.tree
        table, columns = tree.tables()[name], sorted(tree.reads(name) | set(tree.tables()[name].key))
        lossy = may_be_lost(tree).get(name, [])
        try:
            shared = self._shared.of(self._work.computed, tree, name, between)
            note(self._build.run, name, lossy, [shared.lost[column] for column in lossy])
            selected = ", ".join(map(quote, [*columns, SIDE]))
            query = f"SELECT {selected} FROM {rows_of(table, shared.relation)}"
            with settings(self._spark, INTERPRETED):
                # The expressions of derived columns are computed here, where their errors are the feed's.
                self._work.computed.keep(query, view, now=bool(computed(table)))
                self._grow(name, view, columns)
        except SPARK_ERRORS as error:
            if outage(error) is not None:
                raise  # an outage does not make the feed unreadable
            if self._is_same(silver_name, first - 1, last):
                return 0  # Delta may refuse the feed of a version that, for example, only set a property
            raise ChangeFeedUnreadableError(
                f"changes of silver.{silver_name} between versions {first} and {last} cannot be read: "
                f"{cause_of(error)}"
            ) from error
        return shared.number

    def _grow(self, name: TableName, view: str, columns: Collection[str]) -> None:
        """Record the growth of possibly large documents (`gold.builder.growth`)."""
        self._grown[name] = Growth(0, 0)
        if not self._work.sizing.is_small(self._build.tree, self._build.sizes):
            query = growth_query(self._build.tree, name, view, columns)
            rows, texts = self._spark.sql(query).collect()[0]
            self._grown[name] = Growth(int(rows), int(texts))

    def _find_roots(self, affected: Affected, reading: Mapping[str, str]) -> None:
        """Keep the roots as the view ``affected``; record how many roots each node reached."""
        run = self._build.run
        counts = ["count(*) AS roots", f"count_if({CAME}) AS came" if affected.finds_new else "0L AS came"]
        counts += (f"count_if(array_contains({PLACES}, {n})) AS n{n}" for n in range(len(affected.places)))
        with settings(self._spark, reading):
            for step in affected.steps:
                self._work.computed.keep(step.sql, step.name)
            row = self._work.computed.keep(affected.query, "affected", counts)
        run.changes, self._came = int(row["roots"]), int(row["came"])
        run.details["affected_roots"] = [
            {"path": path, "table": str(table), "roots": int(row[f"n{n}"])}
            for n, (path, table) in enumerate(affected.places)
        ]

    def _listed(self) -> Mapping[str, str]:
        """Return literals of the roots' keys if the roots are few and some table is large."""
        build = self._build
        root = build.tree.root.table
        types = [root.column(name).spark_type for name in build.tree.key]
        asked = lists_query(types, "affected")
        if asked is None or build.run.changes > MOST_LISTED or is_small(build.sizes.values()):
            return {}
        return lists_of(types, self._spark.sql(asked).collect()[0].asDict())

    def _expected_rows(self) -> int:
        """Return the rows that these roots have on average."""
        build = self._build
        rows = sum(rows for rows, _ in build.sizes.values())
        # Roots with more rows only take longer.
        return build.run.changes * rows // max(build.sizes[build.tree.root.table.table][0], 1)

    def _assemble(self, how: _Assembly) -> None:
        """Assemble the affected documents, and merge them into the table."""
        compiled, plan, run = how.compiled, how.plan, self._build.run
        wanted = {
            **how.reading,
            **(SINGLE_TASK if how.single_task else partitions(plan)),
            **({} if how.single_task and plan.together else SORTED),
        }
        measured = not plan.together
        with settings(self._spark, wanted):
            counts = [*counts_of(compiled.flags), *(_SUMS if measured else ())]
            row = self._work.computed.keep(_made(compiled, measured=measured), "made", counts)
        if measured:
            plan = self._measured(row, tasks=1 if how.single_task else self._work.tasks())
        run.details |= {FLAGS[flag]: int(row[flag]) for flag in compiled.flags}
        table = self._work.table
        state = table.state()
        position = None if state is None else state.position
        reading = INTERPRETED if is_small([size_of(table.files())]) else LEAN
        no_inserts = plan.broadcast and how.no_inserts
        what = Merge(
            compiled,
            "SELECT * FROM made",
            self._build.cut,
            position,
            restricted=True,
            no_inserts=no_inserts,
            listed=how.listed,
        )
        with settings(self._spark, {**reading, **(SINGLE_TASK if how.single_task else {}), **read_by(plan)}):
            merge(self._spark, table, what, run)

    def _measured(self, row: Mapping[str, Any], *, tasks: int) -> Plan:
        """Return a plan for writing the documents in ``made``, by their measured bytes (`_SUMS`)."""
        run = self._build.run
        run.details["bytes"], run.details["largest_bytes"] = int(row["total"]), int(row["largest"])
        sizes = Sizes(run.changes, int(row["total"]), int(row["largest"]))
        return assembly_plan(sizes, self._work.sizing.machine, tasks=tasks)


def _made(compiled: Compiled, *, measured: bool) -> str:
    """Return a query for the affected roots and their documents, with NULL for deleted documents."""
    flags = [flag_column(flag) for flag in compiled.flags]
    on = " AND ".join(f"a.k{i} = d.{key}" for i, key in enumerate(compiled.key))
    keys = ", ".join(f"a.k{i} AS {ROOT}{i}" for i in range(len(compiled.key)))
    columns = ", ".join(f"d.{quote(name)}" for name in [*compiled.columns, *flags, HASH])
    documents = f"SELECT *, {content_hash(compiled.columns)} AS {HASH} FROM (\n{compiled.assembly}\n)"
    if measured:
        documents = hash_and_bytes(compiled.columns, compiled.assembly)
        columns += f", d.{BYTES}"
    return f"SELECT {keys}, {columns}\nFROM affected AS a\nLEFT JOIN (\n{documents}\n) AS d ON {on}"
