"""Settings of the section `gold` in a pipeline file."""

from __future__ import annotations

from pydantic import Field

from deltasmelt.bronze.config.sections import Section


class GoldSettings(Section):
    """The documents of a pipeline.

    Attributes:
        documents: file patterns, relative to the pipeline file.
    """

    documents: list[str] = Field(default_factory=list)
