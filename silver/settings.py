"""The section `silver` of a pipeline file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from deltasmelt.bronze.config.sections import Pause, Section


class SilverSettings(Section):
    """How changes become row state.

    Attributes:
        deletes: ``hard`` removes rows; ``soft`` keeps them with ``_deleted``.
        history: tables that also keep SCD type 2 history.
        on_drop_column: whether silver keeps a column that the source dropped.
        every: least time from the begin of a cycle to that of the next; 0 or without it, as fast as changes
            come. A job that ends by itself does not wait.
        workers: number of tables that a cycle merges at once; without it, as many as the cores of a local
            Spark, 2 to 16, and 4 with any other Spark.
        cluster: per ``schema.table`` the columns by which its rows are put together in files, in place of the
            key; an empty list: the key. Without it, what documents find a table's rows by.
        types: Spark type per ``schema.table.column``, in place of the mapped one.
    """

    deletes: Literal["hard", "soft"] = "hard"
    history: list[str] = Field(default_factory=list)
    on_drop_column: Literal["keep", "drop"] = "keep"
    every: Pause | None = None
    workers: Annotated[int, Field(ge=1, le=64)] | None = None
    cluster: dict[str, list[str]] = Field(default_factory=dict)
    types: dict[str, str] = Field(default_factory=dict)
