"""`smelt explain`: how changes reach a document, and the JSON Schemas of documents and their files."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bronze.lake.control_tables import ControlTables
from bronze.store.relations import read_relations
from gold.explain import explain
from gold.language.json_schema import document_schema, file_schema
from gold.tree.check import resolved
from pipelines.commands.context import documents_named, require_lake, spark_for
from pipelines.terminal.output import seconds_text
from silver.schema.catalog import silver_catalog

if TYPE_CHECKING:
    from bronze.lake.control import Run
    from gold.explain import Place
    from gold.tree.nodes import Tree
    from pipelines.settings import Pipeline
    from pipelines.terminal.output import Output


def show_file_schema(output: Output) -> None:
    """Print the JSON Schema of document files."""
    output.document(json.dumps(file_schema(), indent=2))


def show_document_schema(pipeline: Pipeline, document: str, output: Output) -> None:
    """Print the JSON Schema of a document.

    Raises:
        SmeltError: no such document, or it does not fit the tables.
    """
    from gold.compile.column_types import columns_of  # noqa: PLC0415 - loads Spark

    tree = _tree(pipeline, document)
    with spark_for(pipeline, output) as spark:
        schema = document_schema(document, columns_of(spark, tree), tree.key_fields)
    output.document(json.dumps(schema, indent=2))


def show_explanation(pipeline: Pipeline, document: str, output: Output) -> None:
    """Print a document's places, what is read there, which roots a change marks, and the last run.

    Raises:
        SmeltError: no such document, or it does not fit the tables.
    """
    tree = _tree(pipeline, document)
    runs = ControlTables(pipeline.lake_address()).runs("gold", document)
    run = next((run for run in runs if run.mode in {"incremental", "full"}), None)
    reached = _reached(run)
    if output.json:
        places = [
            {**asdict(place), "last_run": reached.get((place.path, place.table))} for place in explain(tree)
        ]
        output.value(
            {"document": tree.name, "key": list(tree.key), "places": places, "last_run": _plain(run)}
        )
        return
    where = f", where {tree.root.where}" if tree.root.where is not None else ""
    said = f"one document per row of {tree.root.table.table}, found by {', '.join(tree.key)}{where}"
    output.line(f"gold.{tree.name}: {said}", style="bold")
    output.line(f"last run  {_run_text(run)}")
    for place in explain(tree):
        _say(place, reached.get((place.path, place.table)), output)


def _tree(pipeline: Pipeline, name: str) -> Tree:
    (document,) = documents_named(pipeline, name)
    require_lake(pipeline)
    return resolved(document, silver_catalog(read_relations(pipeline.lake_address()), pipeline.silver))


def _reached(run: Run | None) -> dict[tuple[str, str], dict[str, int]]:
    """For each place that the last incremental run looked at: changed rows of its table, and roots marked."""
    if run is None:
        return {}
    details: dict[str, Any] = run.details
    rows = details.get("changed_rows", {})
    return {
        (place["path"], place["table"]): {
            "changed_rows": rows.get(place["table"], 0),
            "roots": place["roots"],
        }
        for place in details.get("affected_roots", [])
    }


def _plain(run: Run | None) -> dict[str, object] | None:
    if run is None:
        return None
    named = ("mode", "reason", "changes", "inserts", "updates", "deletes", "seconds", "started_at")
    return {"to_lsn": str(run.to_lsn), **{name: getattr(run, name) for name in named}}


def _run_text(run: Run | None) -> str:
    if run is None:
        return "none yet"
    written = f"{run.inserts:,} inserted, {run.updates:,} updated, {run.deletes:,} deleted"
    if run.mode == "full":
        return f"full ({run.reason}) as of {run.to_lsn}: {written}, {seconds_text(run.seconds)}"
    marked = f"{run.changes:,} {'document' if run.changes == 1 else 'documents'} marked"
    return f"incremental, as of {run.to_lsn}: {marked}; {written}, {seconds_text(run.seconds)}"


def _say(place: Place, reached: dict[str, int] | None, output: Output) -> None:
    output.line()
    heading = ", ".join([place.path, *place.also]) or "the document itself"
    verb = "" if place.verb == "root" else f"{place.verb} "
    output.line(f"{heading}: {verb}{place.table}", style="bold")
    _entry(output, "key", ", ".join(place.key))
    _entry(output, "reads", ", ".join(place.reads))
    if place.where is not None and place.verb != "root":
        _entry(output, "where", place.where)
    if place.order:
        _entry(output, "order", ", ".join(place.order))
    hops = [
        f"{hop.this} = {hop.other}" + (f", up to {hop.levels} times" if hop.levels > 1 else "")
        for hop in place.way
    ]
    _entry(output, "marks", *(hops or ["the document of its own row"]))
    if reached is not None:
        _entry(
            output,
            "last run",
            f"{reached['changed_rows']:,} changed rows, {reached['roots']:,} documents marked",
        )


def _entry(output: Output, name: str, *texts: str) -> None:
    for index, text in enumerate(texts):
        output.line(f"  {name if index == 0 else '':9} {text}")
