"""A lake of another format is refused before any row is read or written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA, FORMAT, FORMAT_PROPERTY
from deltasmelt.bronze.store.ownership import require_own_lake
from tests.bronze.store.test_sink import open_sink

if TYPE_CHECKING:
    from pathlib import Path


def test_lake_made_by_bronze_has_this_format(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    require_own_lake(lake, "shop")
    open_sink(str(tmp_path))
    require_own_lake(lake, "shop")
    changes = delta.open_existing(lake.uri("bronze", "changes"))
    assert changes.metadata().configuration[FORMAT_PROPERTY] == FORMAT
    open_sink(str(tmp_path))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "no format number, as before the first release"),
        ({FORMAT_PROPERTY: "3"}, "format 3; this deltasmelt reads and writes formats 1 and 2"),
    ],
)
def test_another_one_is_refused_with_the_remedy(
    tmp_path: Path, properties: dict[str, str], message: str
) -> None:
    lake = Lake(str(tmp_path))
    uri = lake.uri("bronze", "changes")
    delta.open_or_create(uri, CHANGES_SCHEMA, description="", properties=properties)
    for open_it in (lambda: require_own_lake(lake, "shop"), lambda: open_sink(str(tmp_path))):
        with pytest.raises(DefiniteError, match=message) as refused:
            open_it()
        assert refused.value.code == "lake-format"
        assert refused.value.remedy is not None
        assert "lake.path" in refused.value.remedy
