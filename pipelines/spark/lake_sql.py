"""Run any Spark SQL over the lake for `smelt sql`, with every table at one consistent cut.

The cut is the newest common cut of silver and gold (`bronze.lake.consistent_cut`). Without documents, or if
the statement names silver or bronze and never gold, the cut is silver's newest. With ``--as-of``, the cut is
the newest at or before an LSN or a commit time.

Each table becomes a view of its Delta version at the cut. So a join of silver with gold, or of two silver
tables, never mixes moments, whatever a writer commits meanwhile. `bronze.changes` ends at the cut's LSN.
Tables of `control.*` and `quality.*` describe the pipeline itself and are shown at their newest state.

A lake in a catalog already has schemas ``silver`` and so on, and a reader creates nothing in these schemas. A
Spark Connect server has further users, and the catalog belongs to all: a new view would stay, and be visible
to all. So in both cases all views are temporary, and the statement gets a view's name in place of a table's
name (`pipelines.spark.sql_names.aliased`).
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.figures import moment_text
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.consistent_cut import choose_cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.store.marks import kept_from
from deltasmelt.pipelines.moments import named_moment
from deltasmelt.pipelines.spark.sql_names import aliased, odd_views, with_views
from deltasmelt.pipelines.spark.sql_writes import refuse_writing, spelled_out
from deltasmelt.pipelines.terminal.jvm_errors import spark_message
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.small_reads import plain_files
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.lake.consistent_cut import ConsistentCut
    from deltasmelt.bronze.lake.location import Lake, Layer
    from deltasmelt.pipelines.settings import Pipeline

_ALWAYS: Final[tuple[tuple[Layer, str], ...]] = (
    ("bronze", "changes"),
    ("bronze", "relations"),
    ("control", "cuts"),
    ("control", "errors"),
    ("control", "runs"),
    ("quality", "results"),
)
_DESCRIBES: Final = re.compile(r"\s*desc", re.IGNORECASE)
_GLOBAL: Final = "global_temp."
_MISSING: Final = "TABLE_OR_VIEW_NOT_FOUND"


def cut_at(control: ControlTables, *, with_gold: bool, at: Lsn | datetime | None, lake: str) -> ConsistentCut:
    """Return the consistent cut to show: as of `at`, an LSN or a commit time; None for the newest cut.

    `lake` is the lake's name in messages.

    Raises:
        DefiniteError: no cut exists, or no cut is old enough.
    """
    cut = choose_cut(control, with_gold=with_gold, at=at)
    if cut is not None:
        return cut
    oldest = next(iter(control.cuts("silver")), None)
    begins = "no cut exists"
    if oldest is not None:
        # Rounded up, so that the moment, as the message shows it, selects the cut.
        moment = (
            ""
            if oldest.commit_ts is None
            else f" ({moment_text(oldest.commit_ts + timedelta(microseconds=999_999))})"
        )
        begins = f"the oldest cut is {oldest.commit_lsn}{moment}"
    raise DefiniteError(
        f"no cut is recorded as of {named_moment(at)}: {begins}",
        code="no-cut",
        where=lake,
        remedy="use a later LSN or time; `SELECT * FROM control.cuts` lists the cuts. The pipeline file's "
        "lake.retention sets how long cuts stay readable",
    )


def cut_of(
    pipeline: Pipeline, at: Lsn | datetime | None = None, *, statement: str | None = None
) -> ConsistentCut:
    """Return `cut_at` of a pipeline's lake, for one statement or, without a statement, for any."""
    lake = pipeline.lake_address()
    asked = statement is None or may_read_gold(statement)
    return cut_at(
        ControlTables(lake),
        with_gold=bool(pipeline.gold.documents) and asked,
        at=at,
        lake=lake.label,
    )


def tables_at(lake: Lake, cut: ConsistentCut) -> list[tuple[Layer, str]]:
    """Return the tables that statements at a cut can name; tables outside the cut come last."""
    others = [(layer, name) for layer, name in _ALWAYS if delta.open_table(lake.uri(layer, name)) is not None]
    return [*cut.versions, *others]


def may_read_gold(statement: str) -> bool:
    """Check whether a statement needs a cut of gold: not if it names silver or bronze, and never gold."""
    return _named("gold", statement) or not (_named("silver", statement) or _named("bronze", statement))


class LakeSql:
    """Statements over one lake at one cut (by default the newest).

    The session is an own session: `LakeSql` creates schemas named like the layers in its catalog. With
    `alone`, no further program creates global views meanwhile. `documents` are the gold tables of the first
    cut.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        cut: ConsistentCut | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self._spark = spark
        self._alone = alone
        self._lake: Lake = pipeline.lake_address()
        self.cut = cut_of(pipeline) if cut is None else cut
        self.documents = [name for layer, name in self.cut.versions if layer == "gold"]
        self._known = tables_at(self._lake, self.cut)
        self._temporary = not access_of(spark).shares_views or self._lake.place.shares_views
        self._odd = self._named_apart()
        self._registered: dict[tuple[Layer, str], tuple[str, str]] = {}
        self._schemas: set[Layer] = set()
        # after a statement over `bronze.changes`: its first LSN; 0 if nothing was removed
        self.kept_from = ZERO

    def move(self, cut: ConsistentCut) -> None:
        """Show a new cut from now on; a view with an unchanged definition stays."""
        self.cut = cut
        self._known = tables_at(self._lake, cut)
        self._odd = self._named_apart()
        known = frozenset(self._known)
        made = self._registered.items()
        self._drop(
            [
                table
                for table, view in made
                # Drop at once: a table outside the cut gets no later call that would replace its view.
                if table not in known or view not in {self._view(table), self._direct(table)}
            ]
        )

    def forget(self) -> None:
        """Drop all views, so that a new `LakeSql` can show the lake in this session."""
        self._drop(list(self._registered))

    def _drop(self, tables: Iterable[tuple[Layer, str]]) -> None:
        for table in tables:
            name, _ = self._registered.pop(table)
            self._spark.sql(f"DROP VIEW IF EXISTS {name}")

    def _named_apart(self) -> dict[tuple[Layer, str], str]:
        """Return views whose names differ from their tables' names: all if views are temporary, else some."""
        every = {(layer, name): quote(f"{layer}.{name}") for layer, name in self._known}
        return {**(every if self._temporary else {}), **odd_views(self._known)}

    def query(self, statement: str) -> DataFrame:
        """Run a statement after registering the tables that the statement names.

        Raises:
            DefiniteError: the statement would write; or Spark refuses the statement: the message is Spark's
                own, without stack.
        """
        from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415 - Spark is up by now

        statement = self.readable(statement)
        # Only the named tables: a view costs about a second in a cold Spark.
        names = [(layer, name) for layer, name in self._known if _named(name, statement)]
        if re.match(r"\s*(show|use)\b", statement, re.IGNORECASE):
            names = list(self._known)
        try:
            if self._alone and _is_plain(statement):
                # Read small tables directly from their files (`silver.spark.small_reads`): Delta needs two
                # further seconds of a cold Spark for a small table. The statement may use a name that a view
                # of files lacks; Delta's view then answers.
                with suppress(AnalysisException):
                    return self._answer(statement, names, alone=True)
            try:
                return self._answer(statement, names)
            except AnalysisException as error:
                if error.getCondition() != _MISSING or len(self._registered) == len(self._known):
                    raise
                # SQL may have composed a table's name: register all tables.
                return self._answer(statement, list(self._known))
        except PySparkException as error:
            raise self._refused(error) from None

    def readable(self, statement: str) -> str:
        """Return a read-only statement; of EXECUTE IMMEDIATE, return the text that Spark would run.

        Raises:
            DefiniteError: the statement would write; or Spark refuses the text of EXECUTE IMMEDIATE.
        """
        from pyspark.errors import PySparkException  # noqa: PLC0415 - Spark is up by now

        def text_of(expression: str) -> str:
            try:
                (row,) = self._spark.sql(f"SELECT CAST(({expression}) AS STRING)").collect()
            except PySparkException as error:
                raise self._refused(error) from None
            refuse_writing(str(row[0]))
            return str(row[0])

        refuse_writing(statement)
        return spelled_out(statement, text_of)

    def _answer(self, statement: str, names: list[tuple[Layer, str]], *, alone: bool = False) -> DataFrame:
        self._register(names, alone=alone, statement=statement)
        return self._spark.sql(self._with_views(statement))

    def _with_views(self, statement: str) -> str:
        """Return the statement with the names of views in place of the names of tables."""
        if self._temporary:
            return aliased(statement, self._known, self._odd.__getitem__)
        views = {table: view for table, (view, _) in self._registered.items() if view.startswith(_GLOBAL)}
        return with_views(statement, {**self._odd, **views})

    def _register(self, names: list[tuple[Layer, str]], *, alone: bool, statement: str) -> None:
        described = _DESCRIBES.match(statement) is not None
        for table in names:
            made = self._view(table)
            if (held := self._registered.get(table)) is not None:
                direct = held[0].startswith(_GLOBAL)
                stands = (direct and alone) or (not direct and (held == made or not self._temporary))
                if stands and not described:
                    continue
                self._drop([table])
            if not (alone and self._read_directly(table)):
                self._register_view(table, made, described=described)

    def _register_view(self, table: tuple[Layer, str], made: tuple[str, str], *, described: bool) -> None:
        """Create a view of a table; a view to describe gets the table's own comment."""
        layer, _ = table
        if layer not in self._schemas and not self._temporary:
            self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {quote(layer)}")
            self._schemas.add(layer)
        name, select = made
        kind = "TEMPORARY VIEW" if table in self._odd else "VIEW"
        comment = f" COMMENT {literal(self._description(table))}" if described else ""
        self._spark.sql(f"CREATE OR REPLACE {kind} {name}{comment} AS {select}")
        self._registered[table] = made

    def _description(self, table: tuple[Layer, str]) -> str:
        version = self.cut.versions.get(table)
        try:
            return delta.open_at(self._lake.uri(*table), version).metadata().description or ""
        except (DeltaError, OSError):  # Spark reports the cause better
            return ""

    def _is_alone(self, table: tuple[Layer, str]) -> bool:
        """Check whether the table's name is unique across all layers."""
        return sum(1 for _, other in self._known if other.lower() == table[1].lower()) == 1

    def _read_directly(self, table: tuple[Layer, str]) -> bool:
        """Show a small table by a view of its files' rows; return False if Delta has to read the table."""
        made, (layer, name) = self._direct(table), table
        if made is None or table in self._odd or not self._is_alone(table):  # odd at a server: all tables
            return False
        files = plain_files(self._lake, layer, name, self.cut.versions[table])
        if files is None:
            return False
        # Only a view of a DataFrame can show files, and Spark puts such a view into the schema
        # ``global_temp``.
        files.frame(self._spark).createOrReplaceGlobalTempView(quote(name))
        self._registered[table] = made
        return True

    def _direct(self, table: tuple[Layer, str]) -> tuple[str, str] | None:
        """Return name and content of a view of files' rows; None for a table at its newest state."""
        version = self.cut.versions.get(table)
        return None if version is None else (f"{_GLOBAL}{quote(table[1])}", f"files of version {version}")

    def _view(self, table: tuple[Layer, str]) -> tuple[str, str]:
        """Return the quoted name of a table's view, and the view's SELECT."""
        select, version = f"SELECT * FROM {self._lake.sql(*table)}", self._version(table)
        if version is not None:
            select += f" VERSION AS OF {version}"
        if table == ("bronze", "changes"):
            select += f" WHERE commit_lsn <= {int(self.cut.commit_lsn)}"
            changes = delta.open_table(self._lake.uri(*table)) if self._lake.place.shows_files else None
            self.kept_from = ZERO if changes is None else kept_from(changes)
            # Before this LSN, bronze may have lost parts of transactions (`bronze.store.retention`).
            select += f" AND commit_lsn >= {int(self.kept_from)}" if self.kept_from else ""
        return self._odd.get(table) or quote(*table), select

    def _version(self, table: tuple[Layer, str]) -> int | None:
        """Return the version of a table to show; None for the newest version at each read."""
        version = self.cut.versions.get(table)
        if version is None and self._temporary:  # Spark executes an UPDATE through an unpinned view
            found = delta.open_table(self._lake.uri(*table))
            version = None if found is None else found.version()
        return version

    def _refused(self, error: PySparkException) -> DefiniteError:
        names = [f"{layer}.{name}" for layer, name in self._known]
        missing = (
            (error.getMessageParameters() or {}).get("relationName")
            if error.getCondition() == _MISSING
            else None
        )
        if missing is not None:
            name = missing.replace("`", "")
            schema, _, table = name.rpartition(".")
            near = suggestion(name if any(layer == schema for layer, _ in self._known) else table, names)
            return DefiniteError(f"the table {name} does not exist{near}", code="sql-table", where="SQL")
        return DefiniteError(spark_message(error), code="sql", where="SQL")


def _is_plain(statement: str) -> bool:
    """Check whether a statement only reads, creates no view, and names no global view."""
    begins = re.match(r"[\s(]*(select|with|from|table|values)\b", statement, re.IGNORECASE)
    return begins is not None and "global_temp" not in statement.lower()


def _named(name: str, statement: str) -> bool:
    """Check whether the statement holds the name as a whole word, bare or in backticks."""
    written = re.escape(name.replace("`", "``"))
    return re.search(rf"(?<!\w){written}(?!\w)", statement, re.IGNORECASE) is not None
