"""An object store for the tests of a module, and a place in it for each test."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from bronze.lake.stores import register
from tests.object_store import object_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.object_store import ObjectStore

_places = count()


@pytest.fixture(scope="module")
def store_of_module() -> Iterator[ObjectStore]:
    """The server; it keeps its faults from test to test."""
    with object_store() as running:
        yield running


@pytest.fixture
def store(store_of_module: ObjectStore) -> Iterator[ObjectStore]:
    """The server, which has no faults when a test begins."""
    yield store_of_module
    store_of_module.set_faults()


@pytest.fixture
def place(store: ObjectStore) -> str:
    """A location in it that nobody has used, and that is registered."""
    location = f"s3://lake/{next(_places)}/place"
    register(location, store.options())
    return location
