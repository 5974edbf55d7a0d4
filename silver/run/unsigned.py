"""What sessions of an earlier development version committed to silver without a sign of whose it is. Pure.

Such a session signed nothing, and set a mark only with the rows of a window. Its other statements that
changed rows left commits that look like others' (`bronze.lake.foreign_commits`):

* an UPDATE fills a new column: in every row, or in the live rows of a table that keeps others;
* an UPDATE and a DELETE of rows by `_deleted` switch soft deletes on and off. The DROP COLUMN after it takes
  no column that is needed;
* a rebuild at the LSN of the table's mark overwrites all rows.

The process may have died before its cut. The cut before it states no marks, as each of that version's. So
above such a cut, and only there, these commits are taken for the pipeline's own. The search for others
(`silver.run.position`) finds all else there: RESTORE, rows that were added, MERGE, a DELETE or an UPDATE by
any other condition. An UPDATE without a condition, a condition as above and an overwrite of all rows by hand
look the same, and are not recognised. The next cut states marks, and ends this.

A MERGE without a mark is found: that version ran such a MERGE only where somebody had removed rows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from deltasmelt.silver.schema.catalog import DELETED, VALID_TO_LSN

if TYPE_CHECKING:
    from deltasmelt.bronze.lake.foreign_commits import Commit

_FILLED: Final = re.compile(
    rf"isnull\({DELETED}#\d+\)|isnull\({VALID_TO_LSN}#\d+L\)|NOT coalesce\({DELETED}#\d+, false\)"
)
"""Conditions as Spark writes them, with a number of its own behind each column."""
_REMOVED: Final = re.compile(rf"{DELETED}#\d+(: boolean)?")


def may_be_own(commit: Commit) -> bool:
    """Check whether a commit looks like one that an earlier version's session left unsigned."""
    condition = commit.condition.removeprefix('["').removesuffix('"]')
    if commit.operation == "UPDATE":
        return not condition or _FILLED.fullmatch(condition) is not None
    if commit.operation == "DELETE":
        return _REMOVED.fullmatch(condition) is not None
    return commit.operation == "WRITE" and commit.replaces_all
