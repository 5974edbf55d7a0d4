"""What the address of Spark's master says: whether tasks run in the JVM of the driver, and how many at once.

Pure. The addresses are those of Spark's documentation, `master URLs`_. ``local-cluster[2,1,1024]`` is not
local: it starts two workers as processes of their own.

.. _master URLs: https://spark.apache.org/docs/latest/submitting-applications.html#master-urls
"""

from __future__ import annotations

import re


def is_local(master: str) -> bool:
    """Whether all tasks run in the driver's own JVM, on the machine whose files it sees."""
    return re.match(r"local(\[|$)", master) is not None


def cores_of(master: str, *, machine: int) -> int:
    """Tasks that a local master runs at once: ``local[2]``, ``local[*]``; 1 where it says no number.

    Args:
        master: its address.
        machine: cores of the machine.
    """
    found = re.match(r"local\[(\d+|\*)", master)
    if found is None:
        return 1
    return machine if found[1] == "*" else int(found[1])
