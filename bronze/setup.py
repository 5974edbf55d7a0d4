"""What prepares the source and what is found wrong with it, under one name.

`ensure_publication` and `ensure_slot` make what is missing, where `source.manage` allows; `inspect` only
looks.
"""

from __future__ import annotations

from bronze.findings import Finding
from bronze.inspection import inspect
from bronze.publication import ensure_publication, publication_statements
from bronze.published import Publication, read_publication
from bronze.slots import SlotState, ensure_slot, read_slot

__all__ = [
    "Finding",
    "Publication",
    "SlotState",
    "ensure_publication",
    "ensure_slot",
    "inspect",
    "publication_statements",
    "read_publication",
    "read_slot",
]
