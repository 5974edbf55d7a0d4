"""Run a module as if `deltalake` were not installed: ``python -m tests.without_deltalake MODULE …``."""

from __future__ import annotations

import runpy
import sys
from importlib.abc import MetaPathFinder


class WithoutDeltalake(MetaPathFinder):
    """An import hook that hides `deltalake`."""

    def find_spec(self, fullname: str, *_: object) -> None:
        """Return None for every module but `deltalake`; raise for `deltalake` as if not installed."""
        if fullname.partition(".")[0] == "deltalake":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


if __name__ == "__main__":
    sys.meta_path.insert(0, WithoutDeltalake())
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
