"""Starting the JVM of a local session: its options, its settings and where its output goes.

The JVM itself prints what no log4j file can catch (incubator modules, native library notices). Its standard
output and error are the log file from the start, so nothing of it reaches the terminal.

Settings go to the JVM in a file that only its account may read, and that is removed once the JVM answers.
`launch_gateway` would put each on the command line, which every account of the machine can list, and keys of
object stores are among them. Options of the JVM itself (`spark.driver.extraJavaOptions`) do stand there; Java
takes them nowhere else. The environment is ours, without the secrets of the source (`secret_variables`).

How a session that would be started here understands statements, told without starting it.

The types of a document's columns follow from this and from its query (`gold.builder.build_start`). Where
something else starts the session, or it is not local, only the session itself can tell.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import threading
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.lake.catalog.session import is_local
from deltasmelt.pipelines.private import conf_folder
from deltasmelt.pipelines.secret_variables import without_secret_variables
from deltasmelt.pipelines.spark import local_folder
from deltasmelt.pipelines.terminal.interrupts import held_back
from deltasmelt.pipelines.terminal.logs import open_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkConf, SparkContext

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


JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
# A JVM that lives for some statements spends most of its time compiling what it will not run again.
# Without the second compiler Java keeps a fifth of the room for code, and throws away what is still run.
_BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# Half of the CPU time of small windows went into the optimising compiler, whose code is then run a few times:
# it is asked later. Spark's page-sized arrays are humongous to G1 and kept its marking going.
_STEADY: Final = (
    "-XX:Tier4InvocationThreshold=30000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=90000 -XX:Tier4BackEdgeThreshold=200000"
)
# Out of memory, a JVM that goes on answers some calls and lets others wait for ever.
_DEADLY: Final = "-XX:+ExitOnOutOfMemoryError"
_SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
_SHELL: Final = "pyspark-shell"


def refused(name: str, said: str) -> ConfigurationError:
    """The error of a setting that Spark does not take."""
    return ConfigurationError(
        f"Spark refuses {name}: {said}",
        code="spark-setting",
        where="spark",
        remedy="correct it in the section `spark` of the pipeline file, or remove it",
    )


def jvm_options(given: str, *, brief: bool) -> str:
    """Our options of the JVM and the user's; theirs win, and a JVM does not start with two collectors."""
    collector = "-XX:+UseSerialGC" if brief else "-XX:+UseParallelGC"
    ours = [] if re.search(r"-XX:\+Use\w+GC\b", given) else [collector]
    return " ".join([*ours, _BRIEF if brief else _STEADY, _DEADLY, given]).strip()


def option(text: str) -> str:
    """An option of the JVM as Spark's launcher reads it, which splits at blanks outside of quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def launch(conf: SparkConf, log: Path) -> SparkContext:
    """Start the JVM with its output in the log file, and the Spark context in it.

    `launch_gateway` takes arguments of Popen for exactly this; redirecting our own descriptors while it
    starts would swallow what other threads print meanwhile.
    """
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    started: list[Any] = []
    with open_log(log, "ab") as output, _unlisted(conf):
        try:
            # Interrupted before it has told where it listens, a JVM would wait for ever.
            with held_back(lambda: started[0].proc.stdin.close()):  # noqa: PLW0108 - it is not there yet
                started.append(
                    launch_gateway(  # type: ignore[no-untyped-call]  # pyspark ships it without types
                        popen_kwargs=PopenArguments(stdout=output, stderr=output)
                    )
                )
        except PySparkRuntimeError as error:
            lines = log.read_text(errors="replace").strip().splitlines()
            said = [line for line in lines if not line.startswith(("\tat ", "\t... "))][-3:]
            raise DefiniteError(
                "the JVM of Spark did not start: " + " ".join(said or [str(error)]),
                code="spark-start",
                where=str(log),
                remedy="read the log named above; often spark.driver.memory is more than the machine has",
            ) from None
    try:
        _check_values(started[0], conf)
    except BaseException:
        started[0].proc.stdin.close()
        raise
    # Spark sets a handler of SIGINT that calls into the JVM in the middle of whatever call is under way,
    # which then never answers. Ctrl-C stays what it was: an exception in the main thread.
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    context = SparkContext(conf=conf, gateway=started[0])
    if main and before is not None:
        signal.signal(signal.SIGINT, before)
    return context


class PopenArguments(dict[str, Any]):
    """Arguments of Popen that `launch_gateway` adds the environment to, from which secrets are left out.

    It takes the environment from `os.environ`, where they must stay: another thread may start the reader.
    """

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "env":
            value = without_secret_variables(value)
            value.pop(local_folder.VARIABLE, None)  # it would win over the setting, which has what it names
        super().__setitem__(name, value)


def _check_values(gateway: Any, conf: SparkConf) -> None:
    """Refuse what Spark's SQL would not take, before there is a session.

    Spark looks at these values when the session is first used, and fails there each time. pyspark asks the
    same session how to print that failure, so it would be busy with the failure of printing it for hours.

    Raises:
        ConfigurationError: a value is not one of its setting's.
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
            raise refused(name, said) from None


@contextmanager
def _unlisted(conf: SparkConf) -> Iterator[None]:
    """Have a JVM that is launched in this block read its settings from a private file."""
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
    """Settings as a file of Java properties."""
    return "".join(f"{_property(name)}={_property(value)}\n" for name, value in settings.items())


def _property(text: str) -> str:
    escaped = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(escaped.get(one) or (f"\\{one}" if one in "\\ :=#!" else one) for one in text)


def log_settings() -> Path:
    """The log4j2 file, which sends Spark's chatter to the log."""
    return conf_folder() / "log4j2.properties"
