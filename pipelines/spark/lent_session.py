"""A session of somebody else's (a notebook's, Databricks') while work of ours runs in it.

Its statements mean what they mean in our own: what decides that is set, and put back. How they are run is
left to the session's owner. A setting that the session guards stays as it is.

**At a Spark Connect server** the work runs in a clone. The owner's settings stay as they are meanwhile. When
the block ends, however it does, the server ends the clone and all that was made beside it. So nothing is left
that still writes once the lake's lock is given back, and no view is left.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipelines.spark.launch import refused
from pipelines.spark.remote import REMOTE
from pipelines.terminal.interrupts import Terminated
from pipelines.terminal.jvm_errors import spark_message
from silver.run.masters import is_remote
from silver.run.sessions import work_beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession


@contextmanager
def lent(session: SparkSession, given: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session for work of ours that interprets statements as our own would.

    Args:
        session: theirs; as it was before, once the block ends.
        given: the pipeline file's `spark` section.
    """
    if is_remote(session):
        with work_beside(session) as ours:  # which has what decides that
            _set(ours, {name: value for name, value in given.items() if name != REMOTE})
            yield ours
        return
    from silver.run.pinned import PINNED, legacy, pin  # noqa: PLC0415 - the reader must not load Spark
    from silver.run.spark_settings import put_back  # noqa: PLC0415

    before = _before(session, {**PINNED, **legacy(session), **given})
    try:
        pin(session)
        _set(session, {name: value for name, value in given.items() if name in before})
        yield session
    except (KeyboardInterrupt, Terminated):
        raise  # the connection to the JVM is in the middle of a call, and would take its answer for another's
    except BaseException:
        put_back(session, before)
        raise
    put_back(session, before)


def _set(session: SparkSession, given: Mapping[str, str]) -> None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the reader must not load Spark

    from silver.run.spark_settings import change  # noqa: PLC0415

    for name, value in given.items():
        try:
            change(session, name, value)
        except PySparkException as error:
            raise refused(name, spark_message(error).partition("\n")[0]) from None


def _before(session: SparkSession, names: Iterable[str]) -> dict[str, str | None]:
    """Settings that may be set, as they are."""
    return {name: session.conf.get(name, None) for name in names if session.conf.isModifiable(name)}
