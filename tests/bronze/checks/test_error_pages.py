"""Every definite error about the source has its page, every page has the four parts and is in the index."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TypeGuard

import pytest

from bronze.errors import TransientError
from bronze.postgres import error_rules

ROOT = Path(__file__).parents[3]
PAGES = sorted(path for path in (ROOT / "docs" / "errors").glob("*.md") if path.name != "README.md")
MODULES = [
    path for room in ("postgres", "setup", "catalog") for path in (ROOT / "bronze" / room).glob("*.py")
]
FINDINGS = [*(ROOT / "bronze").rglob("*.py"), *(ROOT / "pipelines" / "health").glob("*.py")]


def rules() -> list[error_rules.Rule]:
    return [value for value in vars(error_rules).values() if isinstance(value, error_rules.Rule)]


def literal_codes(module: Path) -> set[str]:
    """Texts given as `code=…` or assigned to `code` in a module, but not those of transient errors."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Call) and not (
            isinstance(node.func, ast.Name) and node.func.id == "TransientError"
        ):
            texts = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
        elif isinstance(node, ast.Assign) and any("code" in ast.unparse(target) for target in node.targets):
            texts = [node.value]
        else:
            continue
        for text in texts:
            found |= {
                each.value
                for each in ast.walk(text)
                if isinstance(each, ast.Constant) and _is_code(each.value)
            }
    return found


def finding_codes(module: Path) -> set[str]:
    """Codes of the findings in a module that are, or can be, errors."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            level, code = given["level"], given["code"]
            if "error" in ast.unparse(level) and isinstance(code, ast.Constant):
                found.add(str(code.value))
    return found


def _is_code(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and "-" in value and " " not in value


def test_every_definite_error_about_the_source_has_a_page() -> None:
    codes = {rule.code for rule in rules() if rule.error is not TransientError}
    for module in MODULES:
        codes |= literal_codes(module)
    assert len(codes) > 35
    assert sorted(codes - {path.stem for path in PAGES}) == []


def test_every_error_that_check_finds_has_a_page() -> None:
    codes = {code for module in FINDINGS for code in finding_codes(module)}
    assert {"pattern-matches-nothing", "replication-privilege", "senders-exhausted"} <= codes
    assert sorted(codes - {path.stem for path in PAGES}) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_four_parts_in_order_and_stands_in_the_index(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {page.stem}\n")
    parts = [text.find(f"\n**{part}.** ") for part in ("Meaning", "Cause", "Diagnosis", "Remedy")]
    assert -1 not in parts
    assert parts == sorted(parts)
    index = (page.parent / "README.md").read_text(encoding="utf-8")
    assert f"[{page.stem}]({page.name})" in index, "add a link to docs/errors/README.md"


def test_the_index_names_no_page_that_is_not_there_and_every_transient_error() -> None:
    index = (ROOT / "docs" / "errors" / "README.md").read_text(encoding="utf-8")
    linked = {part.partition(")")[0] for part in index.split("](")[1:]}
    assert linked == {path.name for path in PAGES}
    for rule in rules():
        if rule.error is TransientError:
            assert f"`{rule.code}`" in index
