"""Every code has a page; every page has a code, the four parts and a line in the index."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from deltasmelt.bronze.postgres import error_rules
from deltasmelt.pipelines.terminal.error_pages import codes, meaning_of, page

ROOT = Path(__file__).parents[3]
PAGES = sorted(path for path in (ROOT / "docs" / "errors").glob("*.md") if path.name != "README.md")
PACKAGES = ("bronze", "silver", "gold", "pipelines", "deltasmelt")
MODULES = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
RULES = {rule.code for rule in vars(error_rules).values() if isinstance(rule, error_rules.Rule)}
_SLUG: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_NO_CODES: Final = {"code", "x"}
"""Texts with the form of a code: a key of a JSON object, and a mode of files."""


def codes_in(module: Path) -> set[str]:
    """Return the texts that are passed as `code=…`, or assigned to a name with "code"."""
    code_set: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        values: list[ast.expr] = []
        if isinstance(node, ast.Call):
            values = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values = [node.value] if any(map(_of_codes, targets)) else []
        code_set |= {
            child.value
            for value in values
            for child in ast.walk(value)
            if isinstance(child, ast.Constant)
            and isinstance(child.value, str)
            and _SLUG.fullmatch(child.value)
        }
    return code_set - _NO_CODES


def _of_codes(target: ast.expr) -> bool:
    return "code" in ast.unparse(target).lower()


def test_every_code_has_a_page() -> None:
    code_set = RULES.union(*map(codes_in, MODULES))
    assert {"slot-lost", "as-of", "spark-missing", "numeric-digits", "stream-ended", "sql"} <= code_set
    assert sorted(code_set - set(codes())) == []


def test_every_page_has_a_code() -> None:
    texts = "\n".join(module.read_text(encoding="utf-8") for module in MODULES)
    assert [path.stem for path in PAGES if f'"{path.stem}"' not in texts] == []


def test_a_page_named_in_a_remedy_is_there() -> None:
    texts = "\n".join(module.read_text(encoding="utf-8") for module in MODULES)
    pages_named = re.findall(r"explain-error ([a-z]+-[a-z-]+)", texts)
    assert len(pages_named) > 4
    assert sorted(set(pages_named) - set(codes())) == []
    assert re.findall(r"[\"' ](docs/errors/[a-z]+(?:-[a-z]+)*\.md)", texts) == [], (
        "not there in an installed wheel"
    )


def test_page_prints_without_links_with_summary_sentence() -> None:
    assert "](" not in "".join(page(code) for code in codes())
    assert meaning_of("slot-in-use").endswith(".")
    assert [code for code in codes() if not meaning_of(code)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_has_four_ordered_parts_and_index_entry(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {page.stem}\n")
    parts = [text.find(f"\n**{part}.** ") for part in ("Meaning", "Cause", "Diagnosis", "Remedy")]
    assert -1 not in parts
    assert parts == sorted(parts)
    index = (page.parent / "README.md").read_text(encoding="utf-8")
    assert f"[{page.stem}]({page.name})" in index, "add a link to docs/errors/README.md"


def test_index_names_only_existing_pages() -> None:
    index = (ROOT / "docs" / "errors" / "README.md").read_text(encoding="utf-8")
    linked = [part.partition(")")[0] for part in index.split("](")[1:]]
    assert sorted(linked) == sorted(path.name for path in PAGES), "each once"
