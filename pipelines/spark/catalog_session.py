"""The session through which the tables of a catalog are opened, for a lake without a path.

Commands look at the lake before they know whether they need Spark. Of a catalog's tables nothing can be seen
without it. So the first look starts the session, or takes the one that is there, and whatever the command
does afterwards finds it as the active one. It ends with the process.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from bronze.lake.named.session import serve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.settings import Pipeline

_LOCK: Final = threading.Lock()


def serve_catalog(pipeline: Pipeline) -> None:
    """Have the tables of a lake without a path opened through a session of this process.

    Args:
        pipeline: of any lake; one with a path needs none.
    """
    lake = pipeline.lake_address()
    if lake.catalog is None:
        return

    def session() -> SparkSession:
        from pipelines.spark.session import active_session, spark_session  # noqa: PLC0415 - loads Spark
        from pipelines.terminal.logs import spark_log  # noqa: PLC0415

        with _LOCK:  # of two threads that look first, one starts it
            found = active_session()
            return spark_session(pipeline.spark, log=spark_log(pipeline.pipeline)) if found is None else found

    serve(lake.catalog, session)
