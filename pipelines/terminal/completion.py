"""Completions beyond commands and options: pipeline files, documents, tables, error codes.

A completion prints values or nothing. A missing or wrong file yields no value: the command itself reports the
reason. Completions load no Spark and query no source.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.errors import SmeltError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltasmelt.pipelines.settings import Pipeline

OPERATIONS: Final = ("insert", "update", "delete", "truncate", "snapshot", "message")
"""Operations of `smelt tail --op`, as in `bronze.changes`."""

_ENDINGS: Final = (".yml", ".yaml")
_DOCUMENT: Final = re.compile(r"""^document:\s*['"]?([^\s'"#]+)""", re.MULTILINE)


def pipeline_files(incomplete: str) -> list[str]:
    """Return YAML files with the typed prefix; without any, the shell completes folders and files itself."""
    start = incomplete.rpartition("/")[2]
    before = incomplete[: len(incomplete) - len(start)]
    folder = Path(before).expanduser() if before else Path()
    try:
        names = sorted(path.name for path in folder.iterdir() if path.suffix in _ENDINGS and path.is_file())
    except OSError:
        return []
    return [f"{before}{name}" for name in _beginning(names, start)]


def documents(ctx: Any, incomplete: str) -> list[str]:
    """Return the names of the pipeline file's documents."""
    return _beginning(_documents(_pipeline(ctx)), incomplete)


def source_tables(ctx: Any, incomplete: str) -> list[str]:
    """Return the pipeline's tables from the lake, by their names at the source (``public.orders``)."""
    return _beginning((name for name, _ in _tables(_pipeline(ctx))), incomplete)


def rebuilt_names(ctx: Any, incomplete: str) -> list[str]:
    """Return names for `smelt rebuild`: silver's tables or documents, by the typed layer."""
    pipeline = _pipeline(ctx)
    layer = str(ctx.params.get("layer", ""))
    names = _documents(pipeline) if layer.endswith("gold") else [name for _, name in _tables(pipeline)]
    return _beginning(names, incomplete)


def operations(incomplete: str) -> list[str]:
    """Return the operations that continue a list."""
    before, comma, start = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(OPERATIONS, start)]


def error_codes(incomplete: str) -> list[str]:
    """Return the codes of errors with a page."""
    from deltasmelt.pipelines.terminal.error_pages import codes  # noqa: PLC0415 - only for this completion

    return _beginning(codes(), incomplete)


def _pipeline(ctx: Any) -> Pipeline | None:
    """Return the pipeline file from the command line so far, if readable."""
    from deltasmelt.pipelines.settings import load_pipeline  # noqa: PLC0415 - half of the time of a completion

    # Behind an option that lacks its value, Typer has taken no argument yet.
    file = ctx.params.get("file") or next(iter(ctx.args), None)
    try:
        return None if file is None else load_pipeline(file)
    except (SmeltError, OSError):
        return None


def _documents(pipeline: Pipeline | None) -> list[str]:
    if pipeline is None:
        return []
    try:
        texts = [path.read_text(encoding="utf-8") for path in pipeline.document_files()]
    except (SmeltError, OSError, UnicodeDecodeError):
        return []
    return [match[1] for match in map(_DOCUMENT.search, texts) if match]


def _tables(pipeline: Pipeline | None) -> list[tuple[str, str]]:
    """Return the names of a local lake's tables, at the source and in silver; an object store may be slow."""
    if pipeline is None or pipeline.lake_address().is_remote:
        return []
    from deltasmelt.bronze.store.relations import read_relations  # noqa: PLC0415 - loads deltalake
    from deltasmelt.silver.schema.catalog import silver_catalog  # noqa: PLC0415

    try:
        tables = silver_catalog(read_relations(pipeline.lake_address()), pipeline.silver).values()
    except (SmeltError, OSError):
        return []
    return [(str(table.table), table.name) for table in tables]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
