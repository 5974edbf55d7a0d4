"""Test the session kind of a master's address."""

from __future__ import annotations

import pytest

from deltasmelt.bronze.lake.catalog.session import is_local
from deltasmelt.silver.spark.tuning import cores_of


@pytest.mark.parametrize(
    ("master", "local", "cores"),
    [
        ("local", True, 1),
        ("local[2]", True, 2),
        ("local[*]", True, 8),
        ("local[4,2]", True, 4),
        ("local-cluster[2,1,1024]", False, 1),
        ("spark://127.0.0.1:7077", False, 1),
        ("yarn", False, 1),
        ("k8s://https://local", False, 1),
        ("", False, 1),
    ],
)
def test_master_is_local_if_driver_runs_tasks(master: str, *, local: bool, cores: int) -> None:
    assert (is_local(master), cores_of(master, machine=8)) == (local, cores)
