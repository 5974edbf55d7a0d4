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
session still reads by its own start (`PolledRules.moved`). The ways are those of the newest complete poll. So
a poll that fails after it wrote the table's gap changes nothing: the next poll finds the same difference.

**Lists and filters of former rules** stay in the publication when their entry leaves the pipeline file. The
marks of the rules still show that deltasmelt set them (`bronze.store.rule_marks`). The file is read once in a
process, so the first poll finds all tables whose rules may differ from the marks. A pipeline without such
tables pays for no query and no read of the lake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltasmelt.bronze.catalog.harmful_members import harmful_members, limited_members
from deltasmelt.bronze.catalog.ruled_tables import (
    detached_parts,
    relations_of,
    ruled_root,
    rules_without_table,
    with_lost_rules,
)
from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.drift.membership import NOT_CARRIED
from deltasmelt.bronze.rules import RuleLostError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import psycopg

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.rules import TableRules
    from deltasmelt.bronze.store.landing import Landing


class PolledRules:
    """The tables with rules in the newest catalog poll.

    Threads: polls, one at a time, call `selected`, `tableless`, `harmful`, `moved` and `note`. Any thread
    calls `of`, `names` and `is_renamed`: `note` replaces what they read as a whole.
    """

    def __init__(self, source: SourceSettings, landing: Landing) -> None:
        self._source = source
        self._rules = source.rules
        self._landing = landing
        # the newest name with rules of each relation; the relations that lost their rules
        self._named: Mapping[int, TableName] = {}
        self._lost: frozenset[int] = frozenset()
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
        observed = self._landing.sink.tables.observed_storage
        former = self._rules.renamed(self.names(relation_id), table)
        former = former or ruled_root(relation_id, self._rules.ruled, observed)
        if former is None and relation_id in self._lost:
            raise RuleLostError("the table had rules under another name, or as a partition of another table")
        return self._rules.table(former or table)

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
        # The marks must be durable before the record of the root's storage, which then lacks the partition.
        marks.note_detached(detached_parts(rules, tables, self.names, marks.observed_storage))
        return with_lost_rules(rules, tables, self.names, marks.observed_storage, marks.detached)

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

    def note(self, tables: Sequence[SourceTable], ways: Mapping[TableName, int]) -> None:
        """Make a complete poll the newest."""
        self._named = {**self._named, **self._names_with_rules(tables)}
        self._lost = frozenset(
            table.relation.relation_id
            for table in tables
            for problem in table.problems
            if problem.code == "column-rule-lost"
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
