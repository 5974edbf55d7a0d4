"""Loading pyarrow without pandas, which nothing but quality's checks uses.

At its first list pyarrow looks whether that is a Series, and loads pandas to find out: a second or two of a
command that would otherwise take one, and some forty megabytes of the reader. It looks once, and takes a
failing import for "not installed". Later `to_pandas`, or an import of pandas, works as ever.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


def load_pyarrow() -> None:
    """Load pyarrow, and have it look for pandas in vain; where pandas is loaded already, do nothing."""
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
