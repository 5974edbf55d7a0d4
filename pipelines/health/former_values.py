"""Findings about silver's histories and soft deletes: values from before a rule of the pipeline file.

The snapshot after a new rule replaces all rows of a table with current rows alone, so an excluded column is
empty there. A history, or a table with soft deletes, keeps earlier rows with their values. A rebuild copies
ended rows, because no change in bronze brings them, so no command removes these values.

The statistics of a table's files decide, and no row is read. Without statistics the values count as present.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

from deltasmelt.bronze.checks.finding import Finding
from deltasmelt.bronze.lake.delta import open_table
from deltasmelt.bronze.store.gaps import gap_of
from deltasmelt.silver.run.table_log import stored_as
from deltasmelt.silver.schema.catalog import COMMIT_LSN, histories, silver_catalog
from deltasmelt.silver.schema.fields import fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.rules import TableRules
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.silver.schema.catalog import SilverTable


def former_value_findings(
    pipeline: Pipeline, changes: Table, relations: Sequence[Relation]
) -> Iterator[Finding]:
    """Yield a finding for each table of silver with values from before the rules.

    Args:
        changes: an open `bronze.changes`.
        relations: all shapes in the lake.
    """
    rules, lake = pipeline.source.rules, pipeline.lake_address()
    for table in silver_catalog(list(relations), pipeline.silver).values():
        of_table, since = rules.table(table.table), gap_of(changes, table.table)
        if not of_table.number() or since is None:
            continue  # without a gap, the rules are as old as the table
        for each in filter(lambda one: one.versioned, (table, *histories([table], pipeline.silver))):
            stored = open_table(lake.uri("silver", each.name))
            if stored is not None and _may_hold(each, stored, of_table, since):
                yield Finding(
                    level="info",
                    code="former-values",
                    subject=f"silver.{each.name}",
                    message="may have values from before the rules in source.columns and source.where, in "
                    f"rows from before {since}; no command removes these values",
                    remedy="to have none, replicate the tables into a new lake",
                )


def _may_hold(table: SilverTable, stored: Table, rules: TableRules, since: Lsn) -> bool:
    """Check whether a table may have rows from before `since`, or values of an excluded column."""
    fields = fields_of(json.loads(stored.schema().to_json()))
    kept = {field.name for field in fields} - {column.name for column in table.columns} - {*table.own_columns}
    if not stored.shows_files or any(rules.action(name) == "exclude" for name in kept):
        return True
    files, name = pa.table(stored.get_add_actions(flatten=True)), f"min.{stored_as(stored, COMMIT_LSN)}"
    return name not in files.column_names or any(
        oldest is None or oldest <= since for oldest in files[name].to_pylist()
    )
