"""What of `deltalake` is a value: its errors, and the actions of a commit.

A process whose lake is a catalog needs no `deltalake` (`bronze.lake.catalog`), and it need not be installed
there. What opens tables with it loads it when it does so. Values of it are everywhere, so they are named here
once; where it is absent, its place is taken by what has the same fields (`bronze.lake.stand_ins`). No
module but this one asks which it is.
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
