"""Two modules alone open tables: they know the options of each store. A third module opens local tables."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
OPENS = re.compile(r"\b(?:DeltaTable|write_deltalake)\(|\bDeltaTable\.create\(|DeltaStorageHandler\(")
DOORS = {"bronze/lake/delta.py", "bronze/lake/parquet.py"}
LOCAL_ALONE = {"bronze/lake/durability.py"}


def test_no_other_module_opens_a_table_by_itself() -> None:
    found = {
        str(path.relative_to(ROOT))
        for room in ("bronze", "silver", "gold", "pipelines", "deltasmelt")
        for path in (ROOT / room).rglob("*.py")
        if OPENS.search(path.read_text(encoding="utf-8"))
    }
    assert found == DOORS | LOCAL_ALONE
