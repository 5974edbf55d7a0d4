"""Check documents against silver's catalog before any run. Needs no Spark and no data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.config.problems import problems_error
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.gold.tree.resolve import resolve

if TYPE_CHECKING:
    from deltasmelt.gold.language.document import Document
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.gold.tree.resolve import Catalog

DOCUMENT_REMEDY: Final = "correct the document file to match the source; the next start rebuilds the document"


def checked_tree(document: Document, catalog: Catalog) -> tuple[Tree | None, list[ConfigurationError]]:
    """Return the resolved document (None with problems), and all problems with their ``file:line``."""
    tree, problems = resolve(document, catalog)
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.line)
    return tree, [
        ConfigurationError(
            problem.message,
            code="document-invalid",
            where=f"{document.file.path}:{problem.line}",
            remedy=DOCUMENT_REMEDY,
        )
        for problem in ordered
    ]


def resolved(document: Document, catalog: Catalog) -> Tree:
    """Return the resolved document; raise a ConfigurationError with all problems, if any."""
    tree, problems = resolve(document, catalog)
    if tree is None:
        raise problems_error(document.file.path, problems, code="document-invalid", remedy=DOCUMENT_REMEDY)
    return tree
