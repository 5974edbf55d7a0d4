"""Checking documents against silver's catalog, before anything runs. Needs no Spark and no data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bronze.config.problems import problems_error
from bronze.errors import ConfigurationError
from gold.tree.resolve import resolve

if TYPE_CHECKING:
    from gold.language.document import Document
    from gold.tree.nodes import Tree
    from gold.tree.resolve import Catalog

DOCUMENT_REMEDY: Final = "correct the document file to match the source; the next start rebuilds the document"


def check_document(document: Document, catalog: Catalog) -> list[ConfigurationError]:
    """Everything that is wrong with a document's tables, columns and types, each with ``file:line``.

    An unknown name brings the nearest known one. An empty list means that the document can be compiled.
    """
    return checked_tree(document, catalog)[1]


def checked_tree(document: Document, catalog: Catalog) -> tuple[Tree | None, list[ConfigurationError]]:
    """The resolved document, None where something is wrong with it; and what, as `check_document` says it."""
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
