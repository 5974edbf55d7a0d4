"""An object store for all tests of a process, and a location in the store for each test."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lake.place import Location, in_store
from tests.object_store import object_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.object_store import ObjectStore

_places = count()


@pytest.fixture(scope="session")
def store_of_all() -> Iterator[ObjectStore]:
    """Start the server, whose objects and faults outlive each test."""
    with object_store() as running:
        yield running


@pytest.fixture
def store(store_of_all: ObjectStore) -> Iterator[ObjectStore]:
    """Return the server, with no faults and no recorded requests when the test begins."""
    store_of_all.forget()
    yield store_of_all
    store_of_all.set_faults()


@pytest.fixture
def place(store: ObjectStore) -> Location:
    """Return a location in the store that no other test uses, with the server's options."""
    return in_store(f"s3://lake/{next(_places)}/place", store.options())
