"""The reader in its own process, without a JVM unless Spark copies large tables (`snapshot.engine`).

`python -m deltasmelt.pipelines.runtime.reader_process` loads the reader, and then reads its orders from
standard input, as one JSON line (`reader_supervision`): the pipeline file and its text, the log file, and the
end. If standard input ends before any orders, the process ends: nobody needs the reader.

Ends of the process:

* the parent requests an end (SIGTERM, or Ctrl-C in a terminal): the reader ends after its current commit;
* the parent dies in any way: only the parent holds the pipe to the reader's standard input open. So standard
  input ends, and the reader stops as after a request. A hung reader is ended after a grace period;
* the reader fails: the process sends the error to the parent as one JSON line, with its remedy, and exits
  with 1.

Events are JSON lines on the original standard output. Standard output itself is first redirected to standard
error (the log file), so a stray print of any library cannot break the stream of events.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TextIO

from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.memory import choose_arrow_allocator
from deltasmelt.pipelines import databricks_secrets
from deltasmelt.pipelines.terminal import output
from deltasmelt.pipelines.terminal.failures import without_secrets
from deltasmelt.pipelines.terminal.logs import open_log
from deltasmelt.pipelines.without_pandas import load_pyarrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GRACE_SECONDS: Final = 30.0
_BLOCK: Final = 65_536
_LOGGER = logging.getLogger("deltasmelt.reader")


def main() -> int:
    """Run the reader until a request to stop, its target, or a failure."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # before anything is loaded that may print
    choose_arrow_allocator()
    load_pyarrow()
    for module in (
        "deltasmelt.bronze.reader.reader",
        "deltasmelt.pipelines.runtime.reader_progress",
        "deltasmelt.pipelines.settings",
    ):
        import_module(module)  # most of a second, while the parent finds out what we are to do

    orders = _orders()
    if orders is None:
        return 0
    with open_log(orders["log"], "ab") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    databricks_secrets.give(orders["secrets"])
    if orders.get("json"):
        output.write_json()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    threading.Thread(target=_stop_with_parent, args=(stop,), name="parent-watch", daemon=True).start()
    until = None if orders["until"] is None else Lsn.parse(orders["until"])
    try:
        _read(orders["file"], orders["text"], until, stop, events)
    except SmeltError as error:
        _LOGGER.exception("the reader stopped")
        _send(events, {"event": "error", **error_fields(error)})
        return 1
    except Exception as error:
        _LOGGER.exception("the reader failed")
        message = without_secrets(str(error)).strip() or "no message"
        _send(
            events, {"event": "error", "kind": "unexpected", "message": f"{type(error).__name__}: {message}"}
        )
        return 1
    _send(events, {"event": "end", "stopped": stop.is_set()})
    return 0


def _orders() -> dict[str, Any] | None:
    """Return the parent's orders; None if the parent ended, or has none."""
    line = bytearray()
    while not line.endswith(b"\n"):  # not through sys.stdin, as below; nothing else ever comes that way
        if not (block := os.read(0, _BLOCK)):
            return None
        line += block
    orders: dict[str, Any] = json.loads(line)
    return orders


def error_fields(error: SmeltError) -> dict[str, str | None]:
    """Return an error as plain values, from which `reader_supervision` makes an error again."""
    return {
        "kind": type(error).__name__,
        "message": without_secrets(error.message),
        "code": error.code,
        "where": error.where,
        "remedy": error.remedy,
    }


def _read(file: str, text: str, until: Lsn | None, stop: threading.Event, events: TextIO) -> None:
    from deltasmelt.bronze.progress import is_under_way  # noqa: PLC0415 - `main` has loaded them
    from deltasmelt.bronze.reader.reader import Reader  # noqa: PLC0415
    from deltasmelt.pipelines.runtime.reader_progress import write_progress  # noqa: PLC0415
    from deltasmelt.pipelines.settings import load_pipeline  # noqa: PLC0415
    from deltasmelt.pipelines.spark.executors import executors_of  # noqa: PLC0415 - loads no Spark yet
    from deltasmelt.pipelines.terminal.logs import start_logging  # noqa: PLC0415

    pipeline = load_pipeline(file, text)

    def session() -> SparkSession:
        from deltasmelt.pipelines.spark.remote import require_server  # noqa: PLC0415 - a catalog's alone
        from deltasmelt.pipelines.spark.session_owner import table_session  # noqa: PLC0415

        require_server(pipeline.spark, code="catalog-session", where="lake", otherwise="set lake.path")
        return table_session(pipeline)

    pipeline.lake_address().place.serve(session)
    start_logging(pipeline.pipeline)

    copying = False

    def report(counters: dict[str, Any]) -> None:
        nonlocal copying
        copies = any(map(is_under_way, counters["snapshots"].values()))
        if copies or copying:
            write_progress(pipeline.lake_address(), counters)
        copying = copies
        _send(events, {"event": "progress", **counters})

    reader = Reader(
        pipeline.pipeline,
        pipeline.source,
        pipeline.lake_address(),
        pipeline.bronze,
        pipeline.snapshot,
        executors=executors_of(pipeline),
        progress=report,
    )
    reader.run(until=until, stop=stop)


def _send(events: TextIO, event: dict[str, Any]) -> None:
    """Write one event, a whole line at once."""
    try:
        events.write(json.dumps(event, default=str) + "\n")
        events.flush()
    except BrokenPipeError:  # the parent is gone; the watch on standard input ends us
        _LOGGER.warning("no process receives the reader's events any longer")


def _stop_with_parent(stop: threading.Event) -> None:
    # Not through sys.stdin: a thread that waits inside its buffer keeps the interpreter from ending.
    while os.read(0, 1):
        pass
    stop.set()
    timer = threading.Timer(_GRACE_SECONDS, os._exit, args=(1,))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main())
