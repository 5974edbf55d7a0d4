"""Suggestions for misspelt and incomplete names."""

from __future__ import annotations

import pytest

from deltasmelt.bronze.config.suggestions import suggestion

TABLES = ["silver.film", "silver.film_actor", "gold.film", "control.cuts"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("film", "; did you mean 'silver.film' or 'gold.film'?"),
        ("FILM", "; did you mean 'silver.film' or 'gold.film'?"),
        ("silver.flim", "; did you mean 'silver.film'?"),
        ("zzz", " (known: silver.film, silver.film_actor, gold.film, control.cuts)"),
    ],
)
def test_name_without_schema_suggests_every_layer(name: str, text: str) -> None:
    assert suggestion(name, TABLES) == text
