"""Create the decoder of one session, and handle the tables that the decoder leaves out."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from deltasmelt.bronze.catalog.queries import columns_of
from deltasmelt.bronze.catalog.select import describe_relation
from deltasmelt.bronze.pgoutput.decoder import StreamDecoder
from deltasmelt.bronze.postgres.connection import translated
from deltasmelt.bronze.postgres.conversion import to_utf8
from deltasmelt.bronze.stream.encodings import ConvertingDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    import psycopg

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.reader.carried_tables import CarriedTables
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.landing import Landing
    from deltasmelt.bronze.store.position import Position

_LOGGER = logging.getLogger("deltasmelt.reader")


def _unreadable(
    landing: Landing, tables: CarriedTables
) -> Callable[[TableName, Lsn, Exception | None], None]:
    """Return the function that opens the gap of a table whose change the lake lacks, or has in part."""

    def unreadable(table: TableName, lsn: Lsn, error: Exception | None) -> None:
        if tables.carries(table):  # otherwise a poll has handled the table
            if error is not None and tables.leave_out(table, lsn, error):
                _LOGGER.error("changes of %s are left out from %s on", table, lsn, exc_info=error)
            if landing.sink.tables.leave_out({table: lsn}) and error is None:
                tables.repeated.needed(table)
                tables.request([table])

    return unreadable


def names_of_columns(
    connection: psycopg.Connection[Any], source: SourceSettings, landing: Landing
) -> Callable[[int, TableName], dict[int, str]]:
    """Return a function for the names of all columns of a relation, by attnum, also of unpublished ones.

    The names are those of the recorded poll; before the first record, those of the catalog.
    """

    def names(relation_id: int, table: TableName) -> dict[int, str]:
        observed = landing.sink.tables.observed_storage(table)
        if observed is not None and observed.storage.relation_id == relation_id:
            return {attnum: column.name for attnum, column in observed.storage.columns.items()}
        with translated(source):
            columns = columns_of(connection, [relation_id], printed=False)
        return {column.attnum: column.name for column in columns.get(relation_id, ())}

    return names


def session_decoder(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    landing: Landing,
    tables: CarriedTables,
    *,
    position: Position,
    encoding: str | None,
) -> StreamDecoder:
    """Return the decoder of a new session; with an encoding, a decoder that converts texts itself.

    Args:
        connection: idle connection; the decoder queries shapes and converts texts over it.
        landing: holds the shapes known before, and the gaps of tables that are left out.
        encoding: the server's encoding; None if the server converts texts to UTF-8 itself.
    """
    rules = tables.rules

    def describe(relation_id: int, _: Lsn) -> Relation | None:
        with translated(source):
            relation = describe_relation(connection, relation_id, source.keys, source.publication)
        return None if relation is None else rules.of(relation_id, relation.table).shape(relation)

    def convert(texts: Sequence[bytes]) -> list[bytes | None]:
        with translated(source):
            return to_utf8(connection, encoding or "UTF8", texts)

    def left_out(without: Mapping[TableName, Lsn]) -> None:
        opened = landing.sink.tables.leave_out(without)
        for table in opened:
            _LOGGER.warning(
                "%s is resnapshotted: a text of %s cannot be converted to UTF-8", table, without[table]
            )
        if opened:
            tables.request(opened)

    # The server sends changes from before a rule by the publication of that time. A new rule opens a gap
    # (`bronze.store.gaps`), and the snapshot after the gap contains all rows. So no change up to the gap
    # needs to reach the lake. The change's own LSN decides: a transaction that commits after the gap may
    # have made changes before the rule. If the snapshot is from before this commit, the gap moves there. A
    # name that had rules counts, too: another relation with rules may have had the name in the log.
    shapes, names = landing.shapes, names_of_columns(connection, source, landing)
    reads_after = landing.sink.tables.ruled_gaps(source.rules, shapes.tables() | source.rules.tables.keys())
    unreadable, hides = _unreadable(landing, tables), partial(rules.hides, connection)
    versions = shapes.until(position.frontier)
    if encoding is None:
        return StreamDecoder(
            describe,
            tables.carries,
            versions,
            knows=shapes.knows,
            recorded=shapes.at,
            rules=rules.of,
            names=names,
            reads_after=reads_after,
            renamed=rules.is_renamed,
            hides=hides,
            unreadable=unreadable,
        )
    return ConvertingDecoder(
        describe,
        tables.carries,
        versions,
        knows=shapes.knows,
        recorded=shapes.at,
        rules=rules.of,
        names=names,
        reads_after=reads_after,
        renamed=rules.is_renamed,
        hides=hides,
        unreadable=unreadable,
        convert=convert,
        left_out=left_out,
    )
