"""Start the JVM of a local session: its options, its settings and its output.

The JVM's standard output and error are the log file from the start: the JVM prints texts that no log4j file
can catch (incubator modules, notices of native libraries), and no such text reaches the terminal.

The JVM reads its settings from a file that only its account may read, because settings include keys of object
stores. `launch_gateway` would put each setting on the command line, which every account of the machine can
list. Options of the JVM itself (`spark.driver.extraJavaOptions`) do stand on the command line; Java reads
them nowhere else. The JVM gets this process's environment, without the secrets of the source
(`secret_variables`).

The module also fingerprints how a local session understands statements, without starting the session
(`session_fingerprint`). The types of a document's columns follow from the fingerprint and from the document's
query (`gold.builder.build_start`).
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shlex
import shutil
import signal
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.lake.catalog.session import is_local
from deltasmelt.pipelines.private import conf_folder
from deltasmelt.pipelines.secret_variables import without_secret_variables
from deltasmelt.pipelines.spark import local_folder
from deltasmelt.pipelines.terminal.logs import open_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkConf, SparkContext

_PACKAGES: Final = ("pyspark", "delta-spark")
_ELSEWHERE: Final = (
    "DATABRICKS_RUNTIME_VERSION", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE"
)  # fmt: skip
"""Variables by which a foreign program decides how Spark starts."""
_REACHED: Final = "spark.hadoop."
"""Prefix of settings for reaching files: they change no type, and credentials among them change often."""


def session_fingerprint(settings: Mapping[str, str]) -> str | None:
    """Return the versions and settings of a local session as a text; None if these are not everything.

    For a session that a foreign program starts, or that is not local, only the session itself knows.
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


JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
# A JVM of few statements spends most of its time on compiling code that runs once. Without the second
# compiler, Java reserves a fifth of the memory for code, and drops code in use: hence the size.
_BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# The optimising compiler took half of the CPU time of small windows, for code that then ran a few times: the
# thresholds delay the compiler. G1 is not used: Spark's page-sized arrays are humongous, and G1 kept marking.
_STEADY: Final = (
    "-XX:Tier4InvocationThreshold=30000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=90000 -XX:Tier4BackEdgeThreshold=200000"
)
# Out of memory, a surviving JVM answers some calls and never answers the remaining calls.
_DEADLY: Final = "-XX:+ExitOnOutOfMemoryError"
_SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
_SHELL: Final = "pyspark-shell"
_REPORT: Final = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""Variable of `launch_gateway`: the file by which the JVM reports its port."""


def refusal(name: str, reason: str) -> ConfigurationError:
    """Return the error of a setting that Spark refuses."""
    return ConfigurationError(
        f"Spark refuses {name}: {reason}",
        code="spark-setting",
        where="spark",
        remedy="correct the setting in the section `spark` of the pipeline file, or remove it",
    )


def jvm_options(options: str, *, brief: bool) -> str:
    """Return deltasmelt's options of the JVM and the user's, which win."""
    # A JVM does not start with two garbage collectors, so the user's collector replaces deltasmelt's.
    collector = "-XX:+UseSerialGC" if brief else "-XX:+UseParallelGC"
    ours = [] if re.search(r"-XX:\+Use\w+GC\b", options) else [collector]
    return " ".join([*ours, _BRIEF if brief else _STEADY, _DEADLY, options]).strip()


def option(text: str) -> str:
    """Return an option of the JVM, quoted for Spark's launcher, which splits at blanks outside of quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def launch(conf: SparkConf, log: Path) -> SparkContext:
    """Start the JVM with its output in the log file, and the Spark context in the JVM."""
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415

    with open_log(log, "ab") as output, _unlisted(conf):
        try:
            # Redirecting this process's own descriptors would swallow the output of all threads.
            gateway = _launched(PopenArguments(stdout=output, stderr=output))
        except PySparkRuntimeError as error:
            lines = log.read_text(errors="replace").strip().splitlines()
            said = [line for line in lines if not line.startswith(("\tat ", "\t... "))][-3:]
            raise DefiniteError(
                "the JVM of Spark did not start: " + " ".join(said or [str(error)]),
                code="spark-start",
                where=str(log),
                remedy="read the log named above; a common cause is a spark.driver.memory above the memory "
                "of the machine",
            ) from None
    try:
        _check_values(gateway, conf)
    except BaseException:
        gateway.proc.stdin.close()
        raise
    # Spark's handler of SIGINT calls the JVM in the middle of a running call, and the running call then never
    # answers. So the former handler is restored: Ctrl-C stays an exception in the main thread.
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    context = SparkContext(conf=conf, gateway=gateway)
    if main and before is not None:
        signal.signal(signal.SIGINT, before)
    return context


def _launched(arguments: PopenArguments) -> Any:
    """Start the JVM in a thread and return its gateway; an interruption takes effect at once.

    An interruption inside `launch_gateway` would lose the process. Here the thread still receives the
    gateway, and then ends the JVM, which has run no statement. If this process ends before, so does the JVM:
    its standard input closes. Meanwhile the caller removes the JVM's settings and closes its log: a JVM that
    the thread starts later has neither, and ends just the same.
    """
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    gateway: Future[Any] = Future()

    def start() -> None:
        try:
            gateway.set_result(launch_gateway(popen_kwargs=arguments))  # type: ignore[no-untyped-call]  # pyspark ships it without types
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            gateway.set_exception(error)

    try:
        threading.Thread(target=start, name="spark-launch", daemon=True).start()
        return gateway.result()
    except BaseException:
        gateway.add_done_callback(_end_jvm)
        atexit.register(arguments.remove_folder)
        raise


def _end_jvm(gateway: Future[Any]) -> None:
    """End the JVM of a gateway that nobody waits for any more."""
    if gateway.exception() is None:
        gateway.result().proc.stdin.close()


class PopenArguments(dict[str, Any]):
    """Arguments of Popen, to which `launch_gateway` adds the environment; secrets are left out.

    `launch_gateway` reads `os.environ`, where the secrets must stay: a further thread may start the reader.
    """

    folder: Path | None = None
    """Folder for the JVM's report of its port; `launch_gateway` removes the folder unless its thread dies."""

    def remove_folder(self) -> None:
        """Remove the folder at the end of the process."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "env":
            self.folder = Path(value[_REPORT]).parent if _REPORT in value else None
            value = without_secret_variables(value)
            value.pop(local_folder.VARIABLE, None)  # the variable would override the setting
        super().__setitem__(name, value)


def _check_values(gateway: Any, conf: SparkConf) -> None:
    """Refuse values that Spark's SQL would refuse, before a session exists.

    Spark checks these values on the first use of the session, and fails on each use. To print this failure,
    pyspark calls the session again, and would fail for hours.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415 - Spark starts

    known = gateway.jvm.org.apache.spark.sql.internal.SQLConf()
    for name, value in conf.getAll():
        if not name.startswith("spark.sql."):
            continue
        try:
            known.setConfString(name, value)
        except Py4JJavaError as error:
            said = str(error.java_exception.getMessage()).strip()
            raise refusal(name, said) from None


@contextmanager
def _unlisted(conf: SparkConf) -> Iterator[None]:
    """Make a JVM that is launched in this block read its settings from a private file, removed afterwards."""
    given = os.environ.get(_SUBMIT)
    (folder,) = made = local_folder.make(None)
    try:
        file = folder / "spark.properties"
        file.touch(mode=0o600)
        file.write_text(properties_text(dict(conf.getAll())), encoding="utf-8")
        options = f"--properties-file {shlex.quote(str(file))} --load-spark-defaults"
        more = (given or "").removesuffix(_SHELL)
        os.environ[_SUBMIT] = f"{more} {options} {_SHELL}"
        try:
            yield
        finally:
            if given is None:
                del os.environ[_SUBMIT]
            else:
                os.environ[_SUBMIT] = given
    finally:
        local_folder.remove(made)


def properties_text(settings: Mapping[str, str]) -> str:
    """Return settings as the text of a Java properties file."""
    return "".join(f"{_property(name)}={_property(value)}\n" for name, value in settings.items())


def _property(text: str) -> str:
    escaped = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(escaped.get(one) or (f"\\{one}" if one in "\\ :=#!" else one) for one in text)


def log_settings() -> Path:
    """Return the path of the log4j2 file, which sends Spark's output to the log."""
    return conf_folder() / "log4j2.properties"
