"""Loading of pyarrow without pandas, which only quality's checks use.

At its first list pyarrow tests for a pandas Series, and loads pandas for the test: a second or two of a short
command, and some forty megabytes of the reader. pyarrow tests once, and takes a failing import for "not
installed". Later `to_pandas`, or an import of pandas, works as usual.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


def load_pyarrow() -> None:
    """Load pyarrow without pandas; with pandas already loaded, do nothing."""
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
