"""The shape version that each Relation message of a session begins, and where in its transaction it begins.

`bronze.pgoutput.relation_versions` tells what the columns are. Here it is told from which change on they
are: the message itself has no LSN, so a version begins after the last change before it
(`Relation.after_lsn`), unless the rows before it had the same shape.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bronze.lsn import ZERO, Lsn
from bronze.pgoutput.relation_versions import relation_version
from bronze.shapes import same_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bronze.pgoutput.earlier_changes import EarlierChanges
    from bronze.pgoutput.messages import AnnouncedRelation, AnnouncedType
    from bronze.shapes import Relation


class ShapeVersions:
    """The newest version of each relation as this session knows it.

    Args:
        describe: as `StreamDecoder`.
        known: as `StreamDecoder`.
        recorded: as `StreamDecoder`.
    """

    def __init__(
        self,
        describe: Callable[[int, Lsn], Relation | None],
        known: Iterable[Relation],
        recorded: Callable[[int, Lsn], Relation | None],
    ) -> None:
        self._describe = describe
        self._recorded = recorded
        self._newest = {version.relation_id: version for version in sorted(known, key=lambda one: one.place)}
        self._types: dict[int, AnnouncedType] = {}

    def note_type(self, announced: AnnouncedType) -> None:
        """Take in a Type message."""
        self._types[announced.oid] = announced

    def begin(self, announced: AnnouncedRelation, commit_lsn: Lsn, earlier: EarlierChanges) -> Relation:
        """The version that a Relation message of a kept table begins.

        Args:
            announced: the message, with the name under which the table is kept.
            commit_lsn: of its transaction.
            earlier: the transaction's changes before it.
        """
        one = announced.relation_id
        known, catalog = self._newest.get(one), self._describe(one, commit_lsn)
        # Asked after the catalog: a table cannot be altered before its snapshot's shape is recorded. A
        # version of this very transaction is left by a session that failed, and may be a later one of it.
        recorded = self._recorded(one, Lsn(commit_lsn - 1))
        if recorded is not None and (known is None or known.place < recorded.place):
            known = recorded
        version = relation_version(announced, commit_lsn, catalog=catalog, known=known, types=self._types)
        if known is not None and same_shape(version, known):
            # The transaction's rows before the message had this shape as well.
            begins: int = known.after_lsn if known.from_lsn == commit_lsn else ZERO
        else:
            begins = earlier.last_if_any_of(one)
        follows_old = bool(begins) and earlier.may_hold_old_tuples(one)
        version = replace(version, after_lsn=Lsn(begins), follows_old=follows_old)
        self._newest[one] = version
        return version
