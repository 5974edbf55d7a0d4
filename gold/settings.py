"""The section `gold` of a pipeline file."""

from __future__ import annotations

from pydantic import Field

from deltasmelt.bronze.config.sections import Section


class GoldSettings(Section):
    """Which documents there are.

    Attributes:
        documents: file patterns, relative to the pipeline file.
    """

    documents: list[str] = Field(default_factory=list)
