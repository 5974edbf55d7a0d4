"""A catalog table without deltasmelt's property belongs to a foreign owner and is refused."""

from __future__ import annotations

import pytest

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.catalog.sql import MADE_PROPERTY, require_ours


def test_a_table_without_our_property_is_anothers() -> None:
    with pytest.raises(DefiniteError) as caught:
        require_ours("catalog://main/silver/customers", {"owner": "them"}, "deltasmelt.relation")
    assert caught.value.code == "catalog-name-taken"
    assert "`main`.`silver`.`customers`" in caught.value.message


def test_ours_passes() -> None:
    require_ours("catalog://main/silver/customers", {"deltasmelt.relation": ""}, "deltasmelt.relation")
    require_ours("catalog://main/control/cuts", {MADE_PROPERTY: "true"}, MADE_PROPERTY)
