"""What catalog polls know about tables with rules: names, lost rules, and lists of former rules.

**A name with rules stays known.** Until a table's first shape is recorded, only polls know the relation under
its name. So each poll adds to the names in `bronze.relations`, and neither a rename before the first shape
nor the end of the shapes ends a rule. After a restart the start refuses the entry, because its table is
unknown (`bronze.catalog.ruled_tables.rules_without_table`).

**A former name in the log** may be from before the table's first rule. So the changes of a relation that has
rules now are kept under its present name only (`PolledRules.is_renamed`). The rules of this name apply, and
the gap of its first rule drops the changes from before (`bronze.reader.session_decoder`). A table that is
renamed while the reader runs keeps its rules by its former name, until the next poll reports the table.

**Another way of the publication** to carry a table with rules needs a new session, because the running
session still reads by its own start (`PolledRules.moved`). So does a table that a poll stops, because the
session's decoder asks for a table at its announcement alone (`PolledRules.stopped`). The ways are those of
the newest complete poll. So a poll that fails after it wrote the table's gap changes nothing: the next poll
finds the same difference.

**Lists and filters of former rules** stay in the publication when their entry leaves the pipeline file. The
marks of the rules still show that deltasmelt set them (`bronze.store.rule_marks`). The file is read once in a
process, so the first poll finds all tables whose rules may differ from the marks. A pipeline without such
tables pays for no query and no read of the lake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltasmelt.bronze.catalog.harmful_members import harmful_members, limited_members
from deltasmelt.bronze.catalog.ruled_parts import (
    known_parts,
    left_parts,
    present_parts,
    recorded_parts,
    relations_of,
)
from deltasmelt.bronze.catalog.ruled_tables import rules_without_table, with_lost_rules
from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.drift.membership import NOT_CARRIED
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.postgres.connection import translated
from deltasmelt.bronze.rules import RuleLostError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import psycopg

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.rules import TableRules
    from deltasmelt.bronze.store.landing import Landing


class PolledRules:
    """The tables with rules in the newest catalog poll.

    Threads: polls, one at a time, call `selected`, `tableless`, `keep_unrecorded`, `harmful`, `moved`,
    `stopped` and `note`. Any thread calls `of`, `hides`, `names` and `is_renamed`: polls replace what
    these read as a whole.
    """

    def __init__(self, source: SourceSettings, landing: Landing) -> None:
        self._source = source
        self._rules = source.rules
        self._ruled = frozenset(source.rules.ruled)
        self._landing = landing
        # the newest name with rules of each relation; the relations that lost their rules
        self._named: Mapping[int, TableName] = {}
        self._lost: frozenset[int] = frozenset()
        # the selected tables and their partitions; the partitions of tables with rules, with their roots
        self._polled: frozenset[int] = frozenset()
        self._parts: Mapping[int, int] = {}
        self._ways: Mapping[TableName, int] = {}
        # tables with rules now, or with recorded rules at the first poll
        self.concerned: Collection[TableName] = ()
        self._first = True
        self._has_limits: bool | None = None

    def of(self, relation_id: int, table: TableName) -> TableRules:
        """Return the rules of a relation, by oid, under a table name.

        A renamed table and a detached partition keep the rules until the next poll reports the table
        (`bronze.catalog.ruled_tables`).

        Raises:
            RuleLostError: a poll has reported the relation.
        """
        if not self._rules.tables or table in self._rules.tables:
            return self._rules.table(table)
        former = self._rules.renamed(self.names(relation_id), table) or self._root(relation_id)
        if former is None and (relation_id in self._lost or self._is_marked(relation_id)):
            raise RuleLostError("the table had rules under another name, or as a partition of another table")
        return self._rules.table(former or table)

    def _root(self, relation_id: int) -> TableName | None:
        """Return the root with rules that has or had a relation as partition."""
        if (root := self._parts.get(relation_id)) is not None:
            return self._named.get(root)
        if relation_id in self._polled:
            return None
        streamed = self._landing.sink.tables.streamed()
        return next(
            (root for root in self._ruled & streamed.keys() if relation_id in streamed[root].named), None
        )

    def _is_marked(self, relation_id: int) -> bool:
        """Check whether a relation that no poll selected was a partition of a table with rules."""
        marks = self._landing.sink.tables
        return relation_id not in self._polled and bool(marks.detached([relation_id]))

    def hides(self, connection: psycopg.Connection[Any], relation_id: int, table: TableName) -> bool:
        """Check whether a partition, or a table above it in the catalog, has or had rules."""
        try:
            relations = [(relation_id, table), *self._ancestors(connection, relation_id)]
            return any(self.of(*relation).number() != 0 for relation in relations)
        except RuleLostError:
            return True

    def _ancestors(
        self, connection: psycopg.Connection[Any], relation_id: int
    ) -> list[tuple[int, TableName]]:
        """Return a partition that no poll has seen, and its ancestors in the catalog, by oid and name.

        The stream names a partition and its topmost root, and a table between them may have rules.
        """
        if not self._ruled or relation_id in self._polled:
            return []
        query = """
            SELECT c.oid, n.nspname, c.relname FROM pg_partition_ancestors(%s::oid) a
            JOIN pg_class c ON c.oid = a.relid JOIN pg_namespace n ON n.oid = c.relnamespace
        """
        with translated(self._source):
            return [(int(oid), TableName(*name)) for oid, *name in connection.execute(query, [relation_id])]

    def names(self, relation_id: int) -> set[TableName]:
        """Return every known name of a relation."""
        named = self._named.get(relation_id)
        return self._landing.shapes.names(relation_id) | (set() if named is None else {named})

    def is_renamed(self, relation_id: int, table: TableName) -> bool:
        """Check whether a relation with rules has another name than `table`."""
        return self._named.get(relation_id, table) != table

    def tableless(self, tables: Sequence[SourceTable]) -> list[TableError]:
        """Return the errors of entries that name no selected and no recorded table."""
        return rules_without_table(self._rules, tables, self._landing.shapes.tables())

    def selected(self, connection: psycopg.Connection[Any]) -> list[SourceTable]:
        """Return the selected tables; a table that left its rules has a problem."""
        rules, marks = self._rules, self._landing.sink.tables
        if self._first:
            self.concerned = rules.tables.keys() | self._landing.shapes.tables()
        recorded = marks.recorded_rules(self.concerned)
        if self._first:
            self.concerned = {table for table in recorded if table in rules.tables or recorded[table]}
            self._first = False
        tables = select_tables(connection, self._source, storage=True, recorded=recorded)
        if rules.tables:
            self._keep_parts(connection, tables)
        return with_lost_rules(rules, tables, self.names, marks.observed_storage, marks.detached)

    def _keep_parts(self, connection: psycopg.Connection[Any], tables: Sequence[SourceTable]) -> None:
        """Record durably which partitions left their roots, before the roots' records forget them."""
        marks, named = self._landing.sink.tables, self._names_with_rules(tables)
        recorded = known_parts(self._rules, tables, self.names, marks.observed_storage, marks.streamed())
        known = {**self._parts, **recorded}
        left = left_parts(known, tables)
        if left:
            query = "SELECT oid FROM pg_class WHERE oid = ANY (%s::oid[])"
            exist = {int(oid) for (oid,) in connection.execute(query, [list(left)])}
            known = {oid: root for oid, root in known.items() if oid in exist or oid not in left}
            marks.note_detached({oid: root for oid, root in left.items() if oid in exist})
        # A table with rules may be a partition itself, of a root without an entry.
        concerned = [table for table in tables if named.keys() & relations_of(table)]
        self._parts = known | present_parts(concerned)

    def keep_unrecorded(self, tables: Sequence[SourceTable]) -> None:
        """Record durably the partitions of tables with rules whose own records lack them, after a poll."""
        marks, named = self._landing.sink.tables, self._names_with_rules(tables)
        unrecorded: dict[int, int] = {}
        for table in tables:
            if table.relation.relation_id in named:
                known = marks.observed_storage(table.table)
                lacking = present_parts([table])
                in_record = set() if known is None else recorded_parts(known)
                unrecorded |= {oid: root for oid, root in lacking.items() if oid not in in_record}
        marks.note_detached(unrecorded)

    def harmful(
        self, connection: psycopg.Connection[Any], selected: Sequence[SourceTable]
    ) -> frozenset[TableName]:
        """Return the members that are not selected and make UPDATEs and DELETEs of the application fail.

        Without rules only a list from before the process can be deltasmelt's own.
        """
        publication = self._source.publication
        if self._has_limits is None:
            self._has_limits = bool(self._rules.tables or limited_members(connection, publication))
        members = harmful_members(connection, publication) if self._has_limits else frozenset()
        return members - {table.table for table in selected}

    def moved(self, ways: Mapping[TableName, int]) -> set[TableName]:
        """Return the tables with rules that the publication carries otherwise than at the newest poll.

        `ways` has the fingerprint of each carried table (`bronze.drift.membership`).
        """
        now = {table: ways.get(table, NOT_CARRIED) for table in self._rules.tables}
        return {table for table, way in now.items() if way not in (NOT_CARRIED, self._ways.get(table))}

    def stopped(self, tables: Sequence[SourceTable]) -> set[TableName]:
        """Return the tables of a poll that have or had rules, or that got the rows of a table with rules."""
        return {table.table for table in tables if table.table in self.concerned or _has_lost_rules(table)}

    def note(self, tables: Sequence[SourceTable], ways: Mapping[TableName, int]) -> None:
        """Make a complete poll the newest."""
        self._polled = frozenset(oid for table in tables for oid in relations_of(table))
        self._named = {**self._named, **self._names_with_rules(tables)}
        # With their partitions: a copy by an earlier poll asks for each partition that it does not know.
        self._lost = frozenset(
            oid for table in tables if _has_lost_rules(table) for oid in relations_of(table)
        )
        self._ways = {table: ways[table] for table in self._rules.tables if table in ways}

    def _names_with_rules(self, tables: Sequence[SourceTable]) -> dict[int, TableName]:
        named = {}
        for table in tables if self._rules.tables else ():
            if self._rules.table(table.table).number():
                named[table.relation.relation_id] = table.table
            for oid in relations_of(table):
                if (former := self._rules.renamed(self.names(oid), table.table)) is not None:
                    named[oid] = former
        return named


def _has_lost_rules(table: SourceTable) -> bool:
    return any(problem.code == "column-rule-lost" for problem in table.problems)
