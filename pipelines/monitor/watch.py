"""The watch over a command from its start to its end: sampler, servers and alerts together.

`watched` is a block around the run. A mistake in the options (a port in use, a missing token) is an error
before the run starts. After the start nothing here raises.

The end of a run is posted with its error, whatever the error, except after an interruption. The watch also
reads the open errors once more at the end: a job may be gone before the next sample.

`why_not_ready` and `why_not_alive` decide whether the layers of a command are reliable now. Pure. Ready
means: the newest sample is fresh, the lake can be read, each layer has a position, no error of the pipeline
is open, and no layer's lag exceeds the limit. Alive means: each stage of the command runs. A command in wait
for its server is alive, and is not ready.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.figures import seconds_text
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.health.status import StatusReader
from deltasmelt.pipelines.health.status_json import plain_status
from deltasmelt.pipelines.monitor.access import TOKEN_VARIABLE, Access, Address, ViewOptions, access_to
from deltasmelt.pipelines.monitor.alerts import Alerts, shown_text
from deltasmelt.pipelines.monitor.metrics import CONTENT_TYPE, SlotTrend, exposition
from deltasmelt.pipelines.monitor.samples import Sampler, Samples, without_login
from deltasmelt.pipelines.monitor.server import Answer, PageServer
from deltasmelt.pipelines.monitor.webhook import Webhook
from deltasmelt.pipelines.terminal.failures import was_interrupted
from deltasmelt.pipelines.terminal.logs import log_folder
from deltasmelt.pipelines.terminal.visible import in_a_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.pipelines.health.status import Status
    from deltasmelt.pipelines.monitor.alerts import Alert
    from deltasmelt.pipelines.monitor.samples import View
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output


def why_not_ready(view: View, layers: Collection[str], limit: float) -> list[str]:
    """Return the reasons; empty for ready layers, whose lag is at most `limit` seconds."""
    status = view.status
    if status is None or view.late:
        return [_no_sample(view)]
    reasons = why_not_alive(view)
    if "bronze" in layers and status.source_error:
        reasons.append(f"the source does not answer: {status.source_error.splitlines()[0]}")
    if not status.lake_read:
        lake_error = (status.lake_error or "").partition("\n")[0]
        return [*reasons, f"the lake cannot be read: {lake_error}"]
    rungs = {rung.name: rung for rung in status.ladder}
    for layer in layers:
        rung = rungs.get(layer)
        if rung is None:  # gold of a pipeline without documents
            continue
        if rung.lsn is None:
            reasons.append(f"{layer} is still empty")
        elif rung.seconds is not None and rung.seconds > limit:
            reasons.append(f"{layer} is {seconds_text(rung.seconds)} behind (limit {seconds_text(limit)})")
    # An error of one table stops this table alone and does not count.
    reasons += [f"open error {error.code}" for error in status.errors if error.scope == "pipeline"]
    return reasons


def why_not_alive(view: View) -> list[str]:
    """Return the dead stages; empty while all stages run."""
    if not view.stages:
        return ["the stages are starting"]
    return [f"{stage} does not run" for stage, alive in view.stages.items() if not alive]


def _no_sample(view: View) -> str:
    if view.age is None:
        return "the status has not been read yet" + (f": {view.failure}" if view.failure else "")
    return f"the newest status is {seconds_text(view.age)} old" + (
        f": {view.failure}" if view.failure else ""
    )


_LAST_ALERTS_SECONDS: Final = 5.0
"""Time limit for alerts still waiting at the command's end."""
_LAST_SAMPLE_SECONDS: Final = 5.0
"""Time limit for the last read of the open errors."""
_LOCAL: Final = "127.0.0.1"
_HTML: Final = "text/html; charset=utf-8"
_LOGGER = logging.getLogger("deltasmelt.monitor")


class Watched:
    """A watched command, with the state of its stages.

    Args:
        interval: seconds between two samples; default: the sampler's.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        layers: Sequence[Layer],
        *,
        read: Callable[[], Status] | None = None,
        interval: float | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._layers = layers
        self._runs = False
        self._samples = Samples()
        self._stages: Callable[[], dict[str, bool]] = dict
        self._restarts: Callable[[], int | None] = lambda: None
        self._alerts = Alerts(
            pipeline.pipeline, kinds=pipeline.alerts.kinds, layers=layers, limit=pipeline.alerts.lag
        )
        url = pipeline.alerts.webhook
        self.webhook = None if url is None else Webhook(url, dropped=self._alerts.dropped)
        self._alerting = threading.Lock()
        self._trend = SlotTrend()
        extra = {} if interval is None else {"interval": interval}
        reader = StatusReader(pipeline, rate=False)
        read = read or (lambda: without_login(reader.read()))
        self.sampler = Sampler(
            lambda: self._trend.of(read(), time.monotonic()),
            self._samples,
            on_status=self._after,
            on_failure=self._failed,
            **extra,
        )

    def runs(
        self, stages: Callable[[], dict[str, bool]], restarts: Callable[[], int | None] = lambda: None
    ) -> None:
        """Record the begin of the run.

        Args:
            stages: returns for each stage whether the stage is alive.
            restarts: returns the number of the reader's restarts; None without a reader.
        """
        self._stages, self._restarts = stages, restarts
        self._runs = True
        self.sampler.start()

    def ended(self, error: Exception | None) -> None:
        """Record the end of the run; raise nothing, and take some seconds at most."""
        if self.webhook is None or (error is not None and was_interrupted(error)):
            return
        self.sampler.stop()
        if self._runs:  # the lake of a run that never began may be another's
            look = threading.Thread(target=self._last_sample, name="last-look", daemon=True)
            look.start()
            look.join(_LAST_SAMPLE_SECONDS)
        if error is not None:
            try:
                self._send(self._alerts.ended(error))
            except Exception:
                _LOGGER.exception("the end of the command could not be sent as an alert")

    def pages(self) -> dict[str, Callable[[], Answer]]:
        """Return every page by its path."""
        return {
            "/": self._page,
            "/healthz": lambda: _probe(why_not_alive(self._view())),
            "/readyz": lambda: _probe(self._reasons(self._view())),
            "/metrics": self.metrics,
            "/status.json": self._status,
            "/quality": self._quality,
        }

    def metrics(self) -> Answer:
        """Return the page for Prometheus."""
        view = self._view()
        text = exposition(
            view,
            self._pipeline.pipeline,
            ready=not self._reasons(view),
            counters={} if self.webhook is None else self.webhook.counters,
            restarts=self._restarts(),
        )
        return Answer(text, CONTENT_TYPE)

    def _view(self) -> View:
        return self._samples.view(self._stages())

    def _reasons(self, view: View) -> list[str]:
        return why_not_ready(view, self._layers, self._pipeline.alerts.lag)

    def _page(self) -> Answer:
        from deltasmelt.pipelines.monitor.page import render  # noqa: PLC0415 - loads jinja2, when the page is first asked for

        view = self._view()
        report = self._report() is not None
        return Answer(
            render(view, self._pipeline.pipeline, self._reasons(view), report=report).encode(), _HTML
        )

    def _status(self) -> Answer:
        view = self._view()
        if view.status is None:
            body = {"error": self._reasons(view)[0]}
            return Answer(_json(body), "application/json", HTTPStatus.SERVICE_UNAVAILABLE)
        return Answer(_json(plain_status(view.status)), "application/json")

    def _quality(self) -> Answer:
        report = self._report()
        if report is None:
            return Answer(b"there is no report of smelt quality\n", status=HTTPStatus.NOT_FOUND)
        return Answer(report.read_bytes(), _HTML)

    def _report(self) -> Path | None:
        """Return the newest report: next to the pipeline file, or at the default place of `smelt quality`."""
        folders = (self._pipeline.folder, log_folder(self._pipeline.pipeline))
        files = [folder / "quality.html" for folder in folders]
        reports = [(file.stat().st_mtime, file) for file in files if file.is_file()]
        return max(reports)[1] if reports else None

    def _after(self, status: Status) -> None:
        with self._alerting:
            self._send(self._alerts.after(status))

    def _failed(self, why: str) -> None:
        with self._alerting:
            self._send(self._alerts.failed(why))

    def _last_sample(self) -> None:
        try:
            lake = self._pipeline.lake_address()
            if delta.open_table(lake.uri("control", "errors")) is None:
                return  # a lake that is gone resolves no error
            errors = ControlTables(lake).open_errors()
            with self._alerting:
                self._send(self._alerts.errors(errors))
        except Exception as error:  # noqa: BLE001 - the command's failure may fail this read, too
            _LOGGER.warning("open errors could not be read at the end: %s", shown_text(str(error)))

    def _send(self, alerts: Sequence[Alert]) -> None:
        if self.webhook is not None:
            for alert in alerts:
                self.webhook.send(alert)


@contextmanager
def watched(
    pipeline: Pipeline, layers: Sequence[Layer], views: ViewOptions | None, output: Output
) -> Iterator[Watched]:
    """Watch the run in the block.

    Raises:
        ConfigurationError: an address or token is unusable.
    """
    views = views or ViewOptions()
    command = Watched(pipeline, layers)
    with ExitStack() as cleanups:
        for server, template in _servers(command, views):
            cleanups.callback(server.stop)
            server.start()
            output.report(template.format(server.address))
        if command.webhook is not None:
            command.webhook.start()
            cleanups.callback(command.webhook.stop, _LAST_ALERTS_SECONDS)
        cleanups.callback(command.sampler.stop)
        try:
            yield command
        except Exception as error:
            command.ended(error)
            raise
        else:
            command.ended(None)


def _servers(command: Watched, views: ViewOptions) -> Iterator[tuple[PageServer, str]]:
    """Yield each requested server with its description; the first listens before the second is made."""
    if views.http is not None:
        access = access_to(views.http, token_file=views.token_file, variable=os.environ.get(TOKEN_VARIABLE))
        yield PageServer(views.http, access, command.pages()), "status page: http://{}/"
    if views.metrics_port is not None:
        place, pages = Address(_LOCAL, views.metrics_port), {"/metrics": command.metrics}
        yield (
            PageServer(place, Access(), pages, option="--metrics-port"),
            "metrics: http://{}/metrics",
        )


def _probe(reasons: list[str]) -> Answer:
    text = "".join(f"{in_a_line(shown_text(reason))}\n" for reason in reasons) or "ok\n"
    return Answer(text.encode(), status=HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK)


def _json(plain: Any) -> bytes:
    return json.dumps(_clean(plain), ensure_ascii=False).encode() + b"\n"


def _clean(value: Any) -> Any:
    """Filter every text for display, at any depth."""
    if isinstance(value, dict):
        return {key: _clean(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner) for inner in value]
    return shown_text(value) if isinstance(value, str) else value
