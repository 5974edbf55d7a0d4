"""The modules of the lake alone open tables, and one module chooses the class of a table."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
OPENS = re.compile(r"\b(?:DeltaTable|write_deltalake)\(|\bDeltaTable\.create\(|DeltaStorageHandler\(")
DOORS = {"bronze/lake/log_table.py", "bronze/lake/folder_table.py", "bronze/lake/parquet.py"}


def test_no_other_module_opens_a_table_by_itself() -> None:
    modules_found = {
        str(path.relative_to(ROOT))
        for room in ("bronze", "silver", "gold", "pipelines", "deltasmelt")
        for path in (ROOT / room).rglob("*.py")
        if OPENS.search(path.read_text(encoding="utf-8"))
    }
    assert modules_found == DOORS


KINDS = frozenset({"is_named", "local_folder", "scheme_of", "Folder", "Store"})
ASKS = re.compile(
    r"\blake(?:_address\(\))?\.(?:path|catalog) is (?:not )?None|\bcast\(\"?DeltaTable"
    r"|\bneeds_session\b|\.in_store\b|\bisinstance\([^()]+, (?:Folder|Store|Catalog)\)"
)


def questions(path: Path) -> set[str]:
    """Return the questions of a module about which kind a place is."""
    text = path.read_text(encoding="utf-8")
    places = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module == "deltasmelt.bronze.lake.place"
    )
    return {name.name for place in places for name in place.names} & KINDS | set(ASKS.findall(text))


def test_only_lake_modules_distinguish_kinds_of_place() -> None:
    """Callers use the methods of a place, and each kind of place implements them."""
    rooms = ("bronze", "silver", "gold", "pipelines", "deltasmelt")
    modules = (path for room in rooms for path in (ROOT / room).rglob("*.py"))
    by_file = {str(path.relative_to(ROOT)): questions(path) for path in modules}
    outside = {path: names for path, names in by_file.items() if names and "bronze/lake/" not in path}
    assert outside == {}
    assert "bronze/lake/delta.py" in by_file


STILL_INSIDE = {
    "pipelines/runtime/table_files.py", "silver/run/commit_counts.py", "silver/run/marks.py",
    "silver/spark/tuning.py",
}  # fmt: skip
"""Modules that still know how a catalog keeps tables. None may come to them."""


def test_catalog_knowledge_stays_in_known_modules() -> None:
    inside = re.compile(r"\bfrom deltasmelt\.bronze\.lake\.catalog(?:\.(?!session\b)\w+)? import ")
    rooms = ("bronze", "silver", "gold", "pipelines", "deltasmelt")
    modules = (path for room in rooms for path in (ROOT / room).rglob("*.py"))
    names = {
        str(path.relative_to(ROOT)) for path in modules if inside.search(path.read_text(encoding="utf-8"))
    }
    assert {path for path in names if "bronze/lake/" not in path} == STILL_INSIDE
