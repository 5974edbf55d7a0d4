"""Loading of pyarrow without pandas, which only quality's checks use.

At its first list pyarrow tests for a pandas Series, and loads pandas for the test: a second or two of a short
command, and some forty megabytes of the reader. pyarrow tests once, and takes a failing import for "not
installed". Later `to_pandas`, or an import of pandas, works as usual.

Arrow's own allocator returns no memory to the system: a process that runs for weeks grew by a MiB a day.
Arrow's functions choose the allocator once, at the import, by an environment variable. `pa.set_memory_pool`
changes the choice for calls from Python alone; the writer of Parquet files, for example, ignores that call.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder


def load_pyarrow() -> None:
    """Load pyarrow, unless it is loaded: without pandas, and with the system's allocator."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa  # noqa: PLC0415 - not before pandas is out of its sight

        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:  # noqa: ARG002 - its interface
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)
