"""Prints the jars of a job that spark-submit starts: ``python -m pipelines.spark.submitted_jars FILE``.

One line, as ``--jars`` takes it: Delta's, and those for the store of the pipeline file's lake. A file that
cannot be read is told by the job itself.
"""

from __future__ import annotations

import sys

from bronze.errors import ConfigurationError, SmeltError
from bronze.lake.stores import scheme_of
from pipelines.settings import load_pipeline
from pipelines.spark.jars import delta_jars, store_jars


def main() -> int:
    """Print them; a jar that cannot be had is an error."""
    try:
        jars = delta_jars()
        scheme = None if len(sys.argv) < 2 else _scheme(sys.argv[1])
        if scheme is not None:
            jars += store_jars(scheme)
    except SmeltError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(",".join(map(str, jars)) + "\n")
    return 0


def _scheme(file: str) -> str | None:
    try:
        path = load_pipeline(file).lake_address().path
    except ConfigurationError:
        return None
    return None if path is None else scheme_of(path)


if __name__ == "__main__":
    sys.exit(main())
