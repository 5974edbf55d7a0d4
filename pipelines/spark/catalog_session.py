"""The session through which the tables of a catalog are opened, for a lake without a path.

Commands look at the lake before they know whether they need Spark. Of a catalog's tables nothing can be seen
without it. So the first look starts the session, or takes the one that is there, and whatever the command
does afterwards finds it as the active one. One that was started here ends with the process (`is_ours`).

The tables are opened in a session beside it (`silver.run.sessions.own_session`). An owner's own settings may
change what is written; its own mark would have Delta skip all commits but the first.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from bronze.lake.named.session import serve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.settings import Pipeline

_LOCK: Final = threading.Lock()
_CANCEL_SECONDS: Final = 5.0
_LOGGER = logging.getLogger("deltasmelt.run")
_started: str | None = None
"""What was started here (`_name_of`)."""
_beside: tuple[str, SparkSession] | None = None
"""What is active, and a session beside it."""


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
        from silver.run.sessions import own_session  # noqa: PLC0415

        global _started, _beside  # noqa: PLW0603 - of the process, as Spark's active session is
        with _LOCK:  # of two threads that look first, one starts it
            found = active_session()
            if found is None:
                found = spark_session(pipeline.spark, log=spark_log(pipeline.pipeline))
                _started = _name_of(found)
            if _beside is None or _beside[0] != _name_of(found):
                _beside = _name_of(found), own_session(found)
            return _beside[1]

    serve(lake.catalog, session)


def _name_of(session: SparkSession) -> str:
    """Names an application, or a session at a server; PySpark gives another object for it each time."""
    from silver.run.masters import is_remote  # noqa: PLC0415 - loads Spark

    remote: Any = session
    return str(remote.session_id if is_remote(session) else session.sparkContext.applicationId)


def is_ours(session: SparkSession) -> bool:
    """Whether a session was started here, and is nobody else's."""
    return _started is not None and _name_of(session) == _started


def cancel(session: SparkSession, work: SparkSession) -> None:
    """Have a session that was started here run nothing any more, and of another nothing of ours at a server.

    A thread of its own asks for it: the caller's may have been interrupted within a call of Spark.

    Args:
        session: the session.
        work: in which our work runs (`pipelines.spark.lent_session`): itself, or at a server one beside it.
    """
    if not is_ours(session) and work is session:
        return
    asking = threading.Thread(target=_cancel, args=(session, work), name="smelt-cancel", daemon=True)
    asking.start()
    asking.join(_CANCEL_SECONDS)


def _cancel(session: SparkSession, work: SparkSession) -> None:
    from silver.run.masters import is_remote  # noqa: PLC0415 - loads Spark
    from silver.run.sessions import interrupt_clones  # noqa: PLC0415

    try:
        if not is_ours(session):
            interrupt_clones(work)
        elif is_remote(session):
            session.interruptAll()
            interrupt_clones()
        else:
            session.sparkContext.cancelAllJobs()
    except Exception as error:  # noqa: BLE001 - this process ends anyhow
        _LOGGER.info("what still runs could not be cancelled: %s", error)
