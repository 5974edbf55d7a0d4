"""Unsigned commits of an earlier development version of silver. Pure.

Sessions of the earlier version signed no commit, and set a mark only with the rows of a window. Further
statements that changed rows left commits without a sign of their writer (`bronze.lake.foreign_commits`).

The process may have ended before its cut. The cut before states no marks, like each cut of the earlier
version. So above a cut without marks, and only there, these commits count as silver's own. The search for
foreign commits (`silver.run.position`) still finds RESTORE, added rows, MERGE, and a DELETE or an UPDATE by
any other condition. Three changes by hand are not recognised: an UPDATE without a condition, an UPDATE or a
DELETE with a condition as below, and an overwrite of all rows. The next cut states marks, and ends the
exception.
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
"""Conditions as Spark writes the conditions, with Spark's number after each column."""
_REMOVED: Final = re.compile(rf"{DELETED}#\d+(: boolean)?")


def may_be_own(commit: Commit) -> bool:
    """Check whether a commit has the form of an unsigned commit by a session of the earlier version."""
    condition = commit.condition.removeprefix('["').removesuffix('"]')
    if commit.operation == "UPDATE":
        # Fills a new column, in every row or in the live rows of a table with ended rows; or begins soft
        # deletes.
        return not condition or _FILLED.fullmatch(condition) is not None
    if commit.operation == "DELETE":
        # Ends soft deletes. The DROP COLUMN afterwards removes no needed column.
        return _REMOVED.fullmatch(condition) is not None
    # A rebuild at the LSN of the table's mark overwrites all rows. A MERGE without a mark is never silver's
    # own: the earlier version ran such a MERGE only after a user had removed rows.
    return commit.operation == "WRITE" and commit.replaces_all
