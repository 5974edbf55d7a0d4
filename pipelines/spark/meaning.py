"""How a session that would be started here understands statements, told without starting it.

The types of a document's columns follow from this and from its query (`gold.builder.definition`). Where
something else starts the session, or it is not local, only the session itself can tell.
"""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bronze.lake.named.session import is_local

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGES: Final = ("pyspark", "delta-spark")
_ELSEWHERE: Final = (
    "DATABRICKS_RUNTIME_VERSION", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE"
)  # fmt: skip
"""Variables by which another program decides what is started."""
_REACHED: Final = "spark.hadoop."
"""Settings that say how files are reached. They change no type, and credentials among them change often."""


def meaning(settings: Mapping[str, str]) -> str | None:
    """Versions and settings of a local session as a text; None where these do not say all.

    Args:
        settings: the pipeline file's `spark` section.
    """
    local = is_local(settings.get("spark.master", "local")) and "spark.remote" not in settings
    if not local or any(os.environ.get(name) for name in _ELSEWHERE):
        return None
    home, folder = os.environ.get("SPARK_HOME"), os.environ.get("SPARK_CONF_DIR")
    folder = folder or (str(Path(home, "conf")) if home else None)
    if folder is not None and Path(folder, "spark-defaults.conf").exists():
        return None
    try:
        versions = [metadata.version(name) for name in _PACKAGES]
    except metadata.PackageNotFoundError:
        return None
    given = {name: value for name, value in settings.items() if not name.startswith(_REACHED)}
    jars = sorted(path.name for path in Path(home, "jars").glob("*.jar")) if home else []
    return json.dumps([versions, home, jars, given], sort_keys=True)
