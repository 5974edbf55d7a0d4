"""A Spark Connect server of a test's own: pyspark's, with Delta's jars and the settings of the product."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pyspark

from pipelines.spark import class_archive
from pipelines.spark.jars import delta_jars
from pipelines.spark.java import check_java
from pipelines.spark.launch import JVM_OPTIONS, jvm_options, log_settings, properties_text
from pipelines.spark.session import server_settings
from tests.patience import until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """A server on a free port of the loopback, in a JVM of its own.

    Args:
        folder: for its files.
        heap: of its JVM.
        settings: more of its own.

    Attributes:
        remote: what `SPARK_REMOTE` is to name it.
    """

    def __init__(
        self, folder: Path, *, heap: str = "1500m", settings: Mapping[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self.remote = f"sc://127.0.0.1:{self.port}"
        self.log = folder / "server.log"
        file = folder / "server.properties"
        file.write_text(
            properties_text(
                {
                    **server_settings("local[2]"),
                    "spark.driver.memory": heap,
                    **_classes(f"-Dlog4j2.configurationFile={log_settings()} -Dsmelt.log={self.log}"),
                    "spark.connect.grpc.binding.address": "127.0.0.1",
                    "spark.connect.grpc.binding.port": str(self.port),
                    "spark.sql.warehouse.dir": str(folder / "warehouse"),
                    **(settings or {}),
                }
            )
        )
        home = Path(pyspark.__file__).parent
        self._said = (folder / "server.out").open("wb")
        self.process = subprocess.Popen(
            [
                str(home / "bin" / "spark-submit"),
                "--properties-file",
                str(file),
                "--class",
                _CLASS,
                "spark-internal",
            ],
            cwd=folder,
            env={**os.environ, "SPARK_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Self:
        until(lambda: self._answers() or self.process.poll() is not None, seconds=120)
        assert self.process.poll() is None, Path(self._said.name).read_text()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self._said.close()

    def _answers(self) -> bool:
        with closing(socket.socket()) as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0


def _classes(given: str) -> dict[str, str]:
    """Delta's jars, and options of a JVM of few statements: over the archive of classes if that is there."""
    java, jars = check_java(), delta_jars()
    options = jvm_options(given, brief=True)
    archive = class_archive.archive_of({}, java, jars)
    if archive is None or not class_archive.usable(archive):
        return {"spark.jars": ",".join(map(str, jars)), JVM_OPTIONS: options}
    return {
        class_archive.CLASS_PATH: os.pathsep.join(map(str, jars)),
        JVM_OPTIONS: f"{options} {class_archive.options(archive)}",
    }


def free_port() -> int:
    """A port of the loopback that nothing listens on now."""
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
