"""One way to write a table of silver or gold: no other function runs a statement that commits to one."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
COMMITS = re.compile(
    r"""f?["'](MERGE|INSERT|UPDATE|DELETE|CREATE(\ OR\ REPLACE)?\ TABLE|ALTER|OPTIMIZE|REORG|VACUUM|RESTORE)
    |as_merge\(|statement\b(?!,)""",
    re.VERBOSE,
)
WRITER = {"run": 1, "write": 1}
ELSEWHERE = {
    "_merge_once": 3,  # a table in a temporary folder, by which Spark is warmed up
    "_make_table": 1,  # a name of a table in a catalog
    "_run": 1,  # keys that a catalog is told
    "train": 1,  # tables of the image's build
}
"""Functions that may run such statements, none on a table of a lake. The numbers may only shrink."""
LEASE = {"silver/run/writer.py", "silver/cycle.py", "gold/cycle.py"} | {
    "pipelines/runtime/stages.py",
    "pipelines/commands/rebuild.py",
}
"""Files that require a layer's lease: the writer, and those that record cuts and runs under it."""


@cache
def modules() -> list[tuple[str, ast.Module]]:
    paths = [path for layer in ("silver", "gold", "pipelines") for path in (ROOT / layer).rglob("*.py")]
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths]


def commits(function: ast.AST) -> int:
    """Count the calls that commit; those of functions inside count for these."""
    number, ahead = 0, [*ast.iter_child_nodes(function)]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.FunctionDef):
            continue
        ahead += ast.iter_child_nodes(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            text = ast.unparse(node.args[0])
            number += node.func.attr == "writeTo" or (node.func.attr == "sql" and bool(COMMITS.match(text)))
    return number


def test_only_writer_runs_committing_statements() -> None:
    counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for name, module in modules():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef) and (number := commits(node)):
                counts[name == "silver/run/writer.py"][node.name] += number
    assert counts[True] == WRITER
    assert counts[False] == ELSEWHERE


def test_writer_and_cut_records_require_lease() -> None:
    callers = {
        name
        for name, module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "still_writing"
    }
    assert callers == LEASE
