"""Prints the jars of a job that spark-submit starts: ``python -m pipelines.spark.submitted_jars WORD…``.

The words are those of the command; the first that is a file of YAML is its pipeline file. One line, as
``--jars`` takes it: Delta's, those for the store of the pipeline's lake, and what the file says by itself
(``spark: {spark.jars: …}``). A file that cannot be read is told by the job itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bronze.errors import ConfigurationError, SmeltError
from bronze.lake.stores import scheme_of
from pipelines.settings import load_pipeline
from pipelines.spark.jars import delta_jars, store_jars
from pipelines.terminal.visible import visible


def main() -> int:
    """Print them; a jar that cannot be had is an error."""
    try:
        sys.stdout.write(visible(",".join(_jars(sys.argv[1:]))) + "\n")
    except SmeltError as error:
        sys.stderr.write(visible(f"error: {error}\n"))
        return 1
    return 0


def _jars(words: list[str]) -> list[str]:
    jars = delta_jars()
    file = next((word for word in words if word.endswith((".yml", ".yaml")) and Path(word).is_file()), None)
    if file is None:
        return [str(jar) for jar in jars]
    try:
        pipeline = load_pipeline(file)
    except ConfigurationError:
        return [str(jar) for jar in jars]
    path = pipeline.lake_address().path
    scheme = None if path is None else scheme_of(path)
    if scheme is not None:
        jars += store_jars(scheme)
    own = pipeline.spark.get("spark.jars", "")
    return [*map(str, jars), *filter(None, own.split(","))]


if __name__ == "__main__":
    sys.exit(main())
