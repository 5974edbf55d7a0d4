"""`smelt explain`: print the paths of changes to a document, and JSON Schemas of documents and their files.

`smelt explain-error`: print the page about an error, also from an installed wheel.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.figures import counted, seconds_text
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.gold.builder.lost_values import LOST
from deltasmelt.gold.explain import explain
from deltasmelt.gold.language.json_schema import document_schema, file_schema
from deltasmelt.gold.tree.check import resolved
from deltasmelt.pipelines.commands.context import documents_named, require_lake, spark_for
from deltasmelt.pipelines.terminal.error_pages import codes, has_page, meaning_of, page
from deltasmelt.pipelines.terminal.output import TITLE
from deltasmelt.silver.schema.catalog import silver_catalog

if TYPE_CHECKING:
    from deltasmelt.bronze.lake.control import Run
    from deltasmelt.gold.explain import ExplainedNode
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output


def show_error(code: str, output: Output) -> str | None:
    """Print the page about a code; return a message for a code without a page."""
    code = code.strip("[]")
    if not has_page(code):
        return f"no error has the code {code!r}{suggestion(code, codes())}"
    output.markdown(page(code))
    return None


def list_errors(output: Output) -> None:
    """Print every code with its meaning."""
    output.table(("code", "meaning"), [(code, meaning_of(code)) for code in codes()])


def show_file_schema(output: Output) -> None:
    """Print the JSON Schema of document files."""
    output.document(json.dumps(file_schema(), indent=2))


def show_document_schema(pipeline: Pipeline, document: str, output: Output) -> None:
    """Print the JSON Schema of a document.

    Raises:
        SmeltError: no such document, or it does not fit the tables.
    """
    from deltasmelt.gold.compile.column_types import field_types  # noqa: PLC0415 - loads Spark

    tree = _tree(pipeline, document)
    with spark_for(pipeline, output) as spark:
        schema = document_schema(document, field_types(spark, tree), tree.key_fields)
    output.document(json.dumps(schema, indent=2))


def show_explanation(pipeline: Pipeline, document: str, output: Output) -> None:
    """Print a document's nodes: the columns read there, the join paths to the root, and the last run.

    Raises:
        SmeltError: no such document, or it does not fit the tables.
    """
    tree = _tree(pipeline, document)
    runs = ControlTables(pipeline.lake_address()).runs("gold", document)
    run = next((run for run in runs if run.mode in {"incremental", "full"}), None)
    reached = _reached(run)
    if output.json:
        nodes = [{**asdict(node), "last_run": reached.get((node.path, node.table))} for node in explain(tree)]
        output.value({"document": tree.name, "key": list(tree.key), "nodes": nodes, "last_run": _plain(run)})
        return
    filter_text = f", where {tree.root.where}" if tree.root.where is not None else ""
    sentence = f"one document per row of {tree.root.table.table}, found by {', '.join(tree.key)}{filter_text}"
    output.line(f"gold.{tree.name}: {sentence}", style=TITLE)
    output.line(f"last run  {_run_text(run)}")
    for column, times in _lost(run).items():
        output.line(
            f"          {counted(times, 'value')} of {column} that silver's type cannot hold count as NULL"
        )
    for node in explain(tree):
        _print(node, reached.get((node.path, node.table)), output)


def _tree(pipeline: Pipeline, name: str) -> Tree:
    (document,) = documents_named(pipeline, name)
    require_lake(pipeline)
    return resolved(document, silver_catalog(read_relations(pipeline.lake_address()), pipeline.silver))


def _reached(run: Run | None) -> dict[tuple[str, str], dict[str, int]]:
    """Return for each node of the last incremental run its changed rows and the affected roots."""
    if run is None:
        return {}
    details: dict[str, Any] = run.details
    rows = details.get("changed_rows", {})
    return {
        (node["path"], node["table"]): {
            "changed_rows": rows.get(node["table"], 0),
            "affected_roots": node["roots"],
        }
        for node in details.get("affected_roots", [])
    }


def _lost(run: Run | None) -> dict[str, int]:
    """Return, by column, the number of read values outside the range of silver's type."""
    # An incremental run reads changed rows alone.
    details: dict[str, Any] = {} if run is None else run.details
    lost: dict[str, int] = details.get(LOST, {})
    return lost


def _plain(run: Run | None) -> dict[str, object] | None:
    if run is None:
        return None
    attributes = ("mode", "reason", "changes", "inserts", "updates", "deletes", "seconds", "started_at")
    return {"to_lsn": str(run.to_lsn), **{name: getattr(run, name) for name in attributes}}


def _run_text(run: Run | None) -> str:
    if run is None:
        return "none yet"
    row_counts = f"{run.inserts:,} inserted, {run.updates:,} updated, {run.deletes:,} deleted"
    if run.mode == "full":
        return f"full ({run.reason}) as of {run.to_lsn}: {row_counts}, {seconds_text(run.seconds)}"
    affected = f"{counted(run.changes, 'document')} affected"
    return f"incremental, as of {run.to_lsn}: {affected}; {row_counts}, {seconds_text(run.seconds)}"


def _print(node: ExplainedNode, reached: dict[str, int] | None, output: Output) -> None:
    output.line()
    heading = ", ".join([node.path, *node.other_paths]) or "the document itself"
    kind = "" if node.kind == "root" else f"{node.kind} "
    output.line(f"{heading}: {kind}{node.table}", style=TITLE)
    _entry(output, "key", ", ".join(node.key))
    _entry(output, "columns", ", ".join(node.columns))
    if node.where is not None and node.kind != "root":
        _entry(output, "where", node.where)
    if node.order_by:
        _entry(output, "order by", ", ".join(node.order_by))
    joins = [
        f"{join.from_columns} = {join.to_columns}"
        + (f", up to {join.max_times} times" if join.max_times > 1 else "")
        for join in node.join_path
    ]
    _entry(output, "join path", *(joins or ["none: each row is the root of one document"]))
    if reached is not None:
        _entry(
            output,
            "last run",
            f"{counted(reached['changed_rows'], 'changed row')}, "
            f"{counted(reached['affected_roots'], 'document')} affected",
        )


def _entry(output: Output, name: str, *texts: str) -> None:
    for index, text in enumerate(texts):
        output.line(f"  {name if index == 0 else '':9} {text}")
