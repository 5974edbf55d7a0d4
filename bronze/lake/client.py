"""Value classes of `deltalake`: its errors, and the actions of a commit.

A process whose lake is a catalog needs no `deltalake` (`bronze.lake.catalog`), which may then be absent. This
module alone distinguishes the two cases: `bronze.lake.stand_ins` has classes with equal fields. Code that
opens tables through `deltalake` loads `deltalake` at the moment of use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltalake import Transaction
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
    from deltalake.transaction import AddAction, RemoveAction
else:
    try:
        from deltalake import Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
        from deltalake.transaction import AddAction, RemoveAction
    except ModuleNotFoundError:
        from deltasmelt.bronze.lake.stand_ins import (
            AddAction,
            CommitFailedError,
            DeltaError,
            RemoveAction,
            TableNotFoundError,
            Transaction,
        )

__all__ = [
    "AddAction",
    "CommitFailedError",
    "DeltaError",
    "RemoveAction",
    "TableNotFoundError",
    "Transaction",
]
