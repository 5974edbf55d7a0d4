"""`smelt sql`: any Spark SQL over the lake, every table at one consistent cut.

The cut is the newest that silver and gold have in common (`bronze.lake.consistent_cut`). It is silver's
newest where there are no documents, or where the statement names silver or bronze and never gold. With
``--as-of`` it is the newest at or before an LSN or a commit time.

Each table becomes a view of its Delta version at that cut. So a join of silver with gold, or of two silver
tables, never mixes moments, whatever is written meanwhile. `bronze.changes` is cut off at the same LSN.
`control.*` and `quality.*` are about the pipeline itself and are shown as they are now.

A view costs about a second of a cold Spark, so only tables that the statement names are registered. If Spark
then misses one (a name put together by SQL itself), all are, and the statement runs again.

Delta's part in reading a small table is two seconds more of a cold Spark. Where the JVM is ours alone, small
tables are read right from their files (`silver.spark.small_reads`). Only a view that a session makes of a
frame can do that, and such a view has a schema of its own, ``global_temp``. So the statement names that.

A lake in a catalog has the schemas ``silver`` and so on already, and nothing of a reader's is made in them. A
Spark Connect server has other users, and its catalog is theirs too: what is made in it stays, and is seen. So
there all views are temporary ones, and a statement gets a view's name in the place of the table's. Mostly
that is the table's own, without the layer.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.consistent_cut import choose_cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.spark.sql_names import odd_views, with_views
from deltasmelt.pipelines.spark.sql_writes import refuse_writing, spelled_out
from deltasmelt.pipelines.terminal.jvm_errors import spark_message
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.small_reads import plain_files
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable

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
_LSN: Final = re.compile(r"[0-9A-Fa-f]+/[0-9A-Fa-f]+|\d+")
_DESCRIBES: Final = re.compile(r"\s*desc", re.IGNORECASE)
_GLOBAL: Final = "global_temp."
_QUERY_NAME: Final = re.compile(r"(?:`((?:[^`]|``)*)`|(\w+))\s*(?:\([^()]*\)\s*)?AS\s*\(", re.IGNORECASE)
_MISSING: Final = "TABLE_OR_VIEW_NOT_FOUND"


def parse_as_of(text: str, *, where: str = "--as-of") -> Lsn | datetime:
    """What ``--as-of`` takes: an LSN, or a time (ISO 8601; UTC where it names no zone).

    Args:
        text: what was given.
        where: it was given, for the message.

    Raises:
        ConfigurationError: neither.
    """
    if _LSN.fullmatch(text.strip()):
        return Lsn.parse(text)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is neither an LSN nor a time",
            code="as-of",
            where=where,
            remedy="give e.g. 0/16B3748, or 2026-01-31T12:00:00Z",
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def moment_of(given: str | datetime | int | None, *, where: str) -> Lsn | datetime | None:
    """What a caller from Python takes for a moment: as `parse_as_of`, a time, an LSN; None: now."""
    if isinstance(given, str):
        return parse_as_of(given, where=where)
    if isinstance(given, datetime):
        return given if given.tzinfo is not None else given.replace(tzinfo=UTC)
    return None if given is None else Lsn(given)


def cut_at(control: ControlTables, *, with_gold: bool, at: Lsn | datetime | None, lake: str) -> ConsistentCut:
    """The consistent cut to show.

    Args:
        control: the lake's control tables.
        with_gold: whether gold is read as well.
        at: an LSN or a commit time; None takes the newest.
        lake: where, for the message.

    Raises:
        DefiniteError: there is none, or none that old.
    """
    cut = choose_cut(control, with_gold=with_gold, at=at)
    if cut is not None:
        return cut
    oldest = next(iter(control.cuts("silver")), None)
    begins = f"the oldest cut is {oldest.commit_lsn} ({oldest.commit_ts})" if oldest else "there is no cut"
    raise DefiniteError(
        f"nothing is recorded as of {at or 'now'}: {begins}",
        code="no-cut",
        where=lake,
        remedy="give a later moment; `SELECT * FROM control.cuts` lists what there is. How long moments "
        "stay readable is lake.retention in the pipeline file",
    )


def cut_of(
    pipeline: Pipeline, at: Lsn | datetime | None = None, *, statement: str | None = None
) -> ConsistentCut:
    """`cut_at` in a pipeline's lake, for one statement or, without one, for any."""
    lake = pipeline.lake_address()
    asked = statement is None or may_read_gold(statement)
    return cut_at(
        ControlTables(lake),
        with_gold=bool(pipeline.gold.documents) and asked,
        at=at,
        lake=lake.label,
    )


def tables_at(lake: Lake, cut: ConsistentCut) -> list[tuple[Layer, str]]:
    """The tables that statements at a cut can name: those of the cut, then those shown as they are now."""
    others = [(layer, name) for layer, name in _ALWAYS if delta.open_table(lake.uri(layer, name)) is not None]
    return [*cut.versions, *others]


def may_read_gold(statement: str) -> bool:
    """Whether a statement needs a moment that gold has: not if it names silver or bronze, and never gold."""
    return _named("gold", statement) or not (_named("silver", statement) or _named("bronze", statement))


class LakeSql:
    """Statements over one lake at one cut.

    Args:
        spark: a session of our own; schemas named as the layers are made in its catalog.
        pipeline: the pipeline.
        cut: what they see; by default the newest.
        alone: nobody else makes global views meanwhile.

    Attributes:
        cut: what they see.
        documents: the tables of gold at the first one.
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
        self._temporary = not access_of(spark).shares_views or self._lake.place.needs_session
        self._odd = self._named_apart()
        self._registered: dict[tuple[Layer, str], tuple[str, str]] = {}
        self._schemas: set[Layer] = set()

    def move(self, cut: ConsistentCut) -> None:
        """Show another cut from now on.

        A view stays where it would be made again as it is. Any other is removed at once: the table that it
        shows may not be in the cut, and nothing would replace it.
        """
        self.cut = cut
        self._known = tables_at(self._lake, cut)
        self._odd = self._named_apart()
        known = frozenset(self._known)
        made = self._registered.items()
        self._drop(
            [
                table
                for table, view in made
                if table not in known
                or view not in {self._view(table), self._short(table), self._direct(table)}
            ]
        )

    def forget(self) -> None:
        """Take the views away: another one shows the lake in this session from now on."""
        self._drop(list(self._registered))

    def _drop(self, tables: Iterable[tuple[Layer, str]]) -> None:
        for table in tables:
            name, _ = self._registered.pop(table)
            self._spark.sql(f"DROP VIEW IF EXISTS {name}")

    def _named_apart(self) -> dict[tuple[Layer, str], str]:
        """Views whose names are not those of their tables: of some, or of all where a server has schemas."""
        every = {(layer, name): quote(f"{layer}.{name}") for layer, name in self._known}
        return {**(every if self._temporary else {}), **odd_views(self._known)}

    def query(self, statement: str) -> DataFrame:
        """Run a statement, its tables registered first.

        Raises:
            DefiniteError: the statement would write; or Spark refuses it: the message is Spark's own, without
                stack.
        """
        from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415 - Spark is up by now

        statement = self.readable(statement)
        names = [(layer, name) for layer, name in self._known if _named(name, statement)]
        if re.match(r"\s*(show|use)\b", statement, re.IGNORECASE):
            names = list(self._known)
        try:
            if self._alone and _is_plain(statement):
                # It may call a table what a view of files is not called; Delta's view then answers.
                with suppress(AnalysisException):
                    return self._answer(statement, names, alone=True)
            try:
                return self._answer(statement, names)
            except AnalysisException as error:
                if error.getCondition() != _MISSING or len(self._registered) == len(self._known):
                    raise
                # A name that SQL puts together is no name of ours.
                return self._answer(statement, list(self._known))
        except PySparkException as error:
            raise self._refused(error) from None

    def readable(self, statement: str) -> str:
        """Return a statement with what EXECUTE IMMEDIATE would run in its place; it only reads.

        Raises:
            DefiniteError: it would write; or Spark refuses the text of EXECUTE IMMEDIATE.
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
        """The statement with the names of views where those of tables stand, if they differ."""
        direct = {
            table: view
            for table, (view, _) in self._registered.items()
            if self._temporary or view.startswith(_GLOBAL)
        }
        return with_views(statement, {**self._odd, **direct})

    def _register(self, names: list[tuple[Layer, str]], *, alone: bool, statement: str) -> None:
        described = _DESCRIBES.match(statement) is not None
        short = self._temporary and _is_plain(statement)
        inner = _names_of_queries(statement) if short else frozenset()
        for table in names:
            made = self._view(table)
            if short and table[1].lower() not in inner:
                made = self._short(table) or made
            if (held := self._registered.get(table)) is not None:
                direct = held[0].startswith(_GLOBAL)
                stands = (direct and alone) or (not direct and (held == made or not self._temporary))
                if stands and not described:
                    continue
                self._drop([table])
            if not (alone and self._read_directly(table)):
                self._register_view(table, made, described=described)

    def _register_view(self, table: tuple[Layer, str], made: tuple[str, str], *, described: bool) -> None:
        """Make a view of a table; one that is to be described says of itself what the table says."""
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
        except (DeltaError, OSError):  # Spark tells better what is wrong
            return ""

    def _is_alone(self, table: tuple[Layer, str]) -> bool:
        """Whether no other table has its name, in any layer."""
        return sum(1 for _, other in self._known if other.lower() == table[1].lower()) == 1

    def _short(self, table: tuple[Layer, str]) -> tuple[str, str] | None:
        """As `_view`, of a temporary view by the table's own name, by which a statement may call columns."""
        if not self._temporary or not self._is_alone(table):
            return None
        return quote(table[1]), self._view(table)[1]

    def _read_directly(self, table: tuple[Layer, str]) -> bool:
        """Show a small table by a view of its files' rows; False where Delta has to read it."""
        made, (layer, name) = self._direct(table), table
        may_read = access_of(self._spark).may_read_files
        if made is None or table in self._odd or not self._is_alone(table) or not may_read:
            return False
        files = plain_files(self._lake, layer, name, self.cut.versions[table])
        if files is None:
            return False
        files.frame(self._spark).createOrReplaceGlobalTempView(quote(name))
        self._registered[table] = made
        return True

    def _direct(self, table: tuple[Layer, str]) -> tuple[str, str] | None:
        """As `_view`, of a view of files' rows; None of a table that is shown as it is now."""
        version = self.cut.versions.get(table)
        return None if version is None else (f"{_GLOBAL}{quote(table[1])}", f"files of version {version}")

    def _view(self, table: tuple[Layer, str]) -> tuple[str, str]:
        """The quoted name of a table's view, and what it selects."""
        select, version = f"SELECT * FROM {self._lake.sql(*table)}", self._version(table)
        if version is not None:
            select += f" VERSION AS OF {version}"
        if table == ("bronze", "changes"):
            select += f" WHERE commit_lsn <= {int(self.cut.commit_lsn)}"
        return self._odd.get(table) or quote(*table), select

    def _version(self, table: tuple[Layer, str]) -> int | None:
        """Return which version of a table is shown; None: the newest, whenever it is read."""
        version = self.cut.versions.get(table)
        if version is None and self._temporary:  # by a temporary view without a version Spark would write
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
            return DefiniteError(
                f"there is no table {name}{suggestion(name, names)}", code="sql-table", where="SQL"
            )
        return DefiniteError(spark_message(error), code="sql", where="SQL")


def _is_plain(statement: str) -> bool:
    """Whether a statement only reads, makes no view of what it reads, and names no global view itself."""
    begins = re.match(r"[\s(]*(select|with|from|table|values)\b", statement, re.IGNORECASE)
    return begins is not None and "global_temp" not in statement.lower()


def _names_of_queries(statement: str) -> frozenset[str]:
    """Names that a statement seems to give to queries in it, in lower case: another meaning within it."""
    found = _QUERY_NAME.findall(statement)
    return frozenset((quoted.replace("``", "`") or plain).lower() for quoted, plain in found)


def _named(name: str, statement: str) -> bool:
    """Whether the statement holds the name as a whole word, as it is or as backticks have it."""
    written = re.escape(name.replace("`", "``"))
    return re.search(rf"(?<!\w){written}(?!\w)", statement, re.IGNORECASE) is not None
