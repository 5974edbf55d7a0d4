"""The grain of the code: modules neither so small nor so large that a reader loses the thread."""

from __future__ import annotations

import ast
import re
import threading
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAYERS = ("bronze", "silver", "gold", "pipelines")
APART = {
    "bronze.drift.streamed_queries": "the queries of a room lie in the room, whoever runs them",
    "bronze.lake.stand_ins": "loaded only where `deltalake` is not installed",
    "bronze.reader.marks_beyond": "an argument of its own beside a module of 400 lines",
    "gold.compile.counting": "merging into `gold.builder.full` would close a circle",
    "gold.settings": "a section of the pipeline file, as silver has one",
    "gold.tree.text_order": "a rule of trees; `smelt check` is in another layer",
    "pipelines.commands.check": "each command has a file",
    "pipelines.spark.logstore.make": "a program",
    "silver.run.unsigned": "an argument of its own beside a module of 400 lines",
}
"""Modules under 40 lines of code with at most one importer, and why each stays a module."""

SPEED_UPS = (
    "bronze.lake.entries",
    "gold.builder.memory",
    "gold.incremental.key_lists",
    "pipelines.runtime.reader_supervision",
    "pipelines.runtime.supervisor",
    "pipelines.spark.class_archive",
    "silver.run.bronze_window",
    "silver.run.key_ranges",
    "silver.spark.lazy_session",
    "silver.spark.small_reads",
    "silver.spark.tuning",
)
"""Modules that only make something faster or smaller; one with a gain below 10 % is removed."""


def lines_of_code(text: str, tree: ast.Module) -> int:
    """Count lines without blank lines, comments and docstrings."""
    prose: set[int] = set()
    for node in ast.walk(tree):
        for item in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant):
                prose.update(range(item.lineno, (item.end_lineno or item.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and line.strip()[0] != "#" and at not in prose for at, line in lines)


def modules() -> dict[str, str]:
    """Return the text of every module of the product by its name."""
    paths = [path for layer in (*LAYERS, "deltasmelt") for path in (ROOT / layer).rglob("*.py")]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text(encoding="utf-8")
        for path in paths
        if not path.relative_to(ROOT).is_relative_to(Path("pipelines", "conf"))
    }


def test_a_small_module_has_more_than_one_importer() -> None:
    texts = modules()
    importers: dict[str, set[str]] = defaultdict(set)
    trees = {name: ast.parse(text) for name, text in texts.items()}
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                home = node.module.removeprefix("deltasmelt.")
                for target in (home, *(f"{home}.{alias.name}" for alias in node.names)):
                    importers[target].add(name)
    small = {
        name
        for name, tree in trees.items()
        if not name.endswith(("__init__", "__main__"))
        and lines_of_code(texts[name], tree) < 40
        and len(importers[name]) <= 1
    }
    assert small == set(APART)


def test_no_module_has_more_than_five_hundred_lines() -> None:
    long = {name for name, text in modules().items() if len(text.splitlines()) > 500}
    assert long <= {"pipelines.cli"}, "a function for each command, with its options"


def test_no_thread_hides_attributes_of_threads() -> None:
    """Python's `join` calls `_stop`, for instance; type checkers do not know such private names."""
    for name, text in modules().items():
        for thread in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)):
            if any(ast.unparse(base) in {"Thread", "threading.Thread"} for base in thread.bases):
                own = {node.attr for node in ast.walk(thread) if isinstance(node, ast.Attribute)
                       and isinstance(node.ctx, ast.Store)}  # fmt: skip
                assert own & {*dir(threading.Thread), "_target", "_args", "_kwargs"} == set(), name


def test_each_room_names_its_modules() -> None:
    for init in (path for layer in LAYERS for path in (ROOT / layer).rglob("__init__.py")):
        room = init.parent
        head = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        named = set(re.findall(r"`(\w+)`", head))
        modules_of_room = {path.stem for path in room.glob("*.py") if not path.stem.startswith("_")}
        rooms = {path.name for path in room.iterdir() if path.is_dir()}
        lacking, foreign = modules_of_room - named - {"make"}, named - modules_of_room - rooms - {"deltalake"}
        assert (lacking, foreign) == (set(), set()), init


def test_names_of_tests_have_at_most_eight_words() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    names = [name for text in texts for name in re.findall(r"^ *def test_(\w+)", text, re.MULTILINE)]
    assert [name for name in names if len(name.split("_")) > 8] == []


def test_each_speed_up_names_its_measured_gain() -> None:
    texts = modules()
    heads = {name: ast.get_docstring(ast.parse(texts[name])) or "" for name in SPEED_UPS}
    assert [name for name, head in heads.items() if "Measured: " not in head] == []
