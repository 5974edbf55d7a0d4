"""Checking documents against silver's catalog, before anything runs. Needs no Spark and no data."""

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
    """The resolved document, None where something is wrong with it; and everything that is wrong.

    Each problem of a table, a column or a type has its ``file:line``; an unknown name brings the nearest
    known one. Without problems the document can be compiled.
    """
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
    """The resolved document.

    Raises:
        ConfigurationError: everything that is wrong with it.
    """
    tree, problems = resolve(document, catalog)
    if tree is None:
        raise problems_error(document.file.path, problems, code="document-invalid", remedy=DOCUMENT_REMEDY)
    return tree
