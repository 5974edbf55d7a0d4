"""What decides what a document's table holds, as far as that is known without Spark.

A table names the definition that it was built by: a digest of what is described here and of the types that
Spark compiles the document to (`gold.builder.document`). These types follow from the document's query, from
Spark's version and from the settings under which it runs. So once a process with Spark has found that a
table's definition is the document's, that is remembered in the details of its run (`PROVEN`), together with
all of these. While they are the same, the definition is, and no Spark has to be asked again.
"""

from __future__ import annotations

import hashlib
from importlib import metadata
from typing import TYPE_CHECKING, Final

from gold.compile.compiler import compile_tree
from gold.compile.empty import empty_table
from gold.tree.derived import Derived
from silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gold.language.document import Document
    from gold.tree.nodes import Tree

PROVEN: Final = "definition_proof"
"""In a run's details: the `proof` by which its table's definition was found to be the document's."""

_COMPILER: Final = "3"
"""Part of every digest: raised when the compiler gives another meaning to the same definition."""


def described(document: Document, tree: Tree, session: Mapping[str, str]) -> str:
    """All that decides what the table holds but Spark's types: definition, columns behind names, keys.

    Keys do: arrays are in the order of their rows' keys where nothing else orders them.

    Args:
        document: its definition.
        tree: the document, resolved against silver's catalog.
        session: settings of the session that may not be set, and have another value than they should.
    """
    tables = sorted(tree.tables().values(), key=lambda table: str(table.table))
    behind = [
        f"{table.table}.{column.name} {column.attnum} {column.spark_type}"
        + (f" {column.sql}" if isinstance(column, Derived) else "")
        for table in tables
        for column in sorted(table.columns, key=lambda column: column.name)
        if column.name in tree.reads(table.table) | set(table.key)
    ]
    keys = [f"{table.table} by {', '.join(map(quote, table.key))}" for table in tables]
    settings = [f"{name} = {value}" for name, value in sorted(session.items())]
    return "\n".join([_COMPILER, document.digest, *settings, *keys, *behind])


def digest_of(description: str, schema: str) -> str:
    """The digest by which a table names its definition.

    Args:
        description: of `described`.
        schema: Spark's types of the document's columns, as Spark writes them in short.
    """
    return hashlib.sha256(f"{description}\n{schema}".encode()).hexdigest()


def proof(document: Document, tree: Tree, definition: str, meaning: str) -> str:
    """A digest of a table's definition together with all that the definition follows from.

    Args:
        document: its definition.
        tree: the document, resolved against silver's catalog.
        definition: that the table names.
        meaning: how Spark understands statements (`silver.run.lazy_session.LazySession.meaning`).
    """
    query = compile_tree(tree, lambda name: empty_table(tree, name)).sql
    parts = (definition, meaning, _release(), described(document, tree, {}), query)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _release() -> str:
    """Ours: another one may refuse what this one builds."""
    try:
        return metadata.version("deltasmelt")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return ""
