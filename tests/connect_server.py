"""A Spark Connect server for one test: pyspark's, with Delta's jars and the product's settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

from deltasmelt.pipelines.demo.embedded_postgres import free_port
from deltasmelt.pipelines.spark import class_archive
from deltasmelt.pipelines.spark.jars import delta_jars
from deltasmelt.pipelines.spark.java import check_java
from deltasmelt.pipelines.spark.launch import JVM_OPTIONS, jvm_options, log_settings, properties_text
from deltasmelt.pipelines.spark.session import _DELTA, _DYNAMIC, _STATIC, tasks_of
from tests.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer(ServerProcess):
    """A server in a separate JVM, on a free port of the loopback.

    Args:
        heap: largest heap of the server's JVM.
        master: master URL under which the server runs tasks.
        settings: further Spark settings; they override the defaults.

    Attributes:
        remote: value of `SPARK_REMOTE` that leads to the server.
    """

    def __init__(
        self,
        folder: Path,
        *,
        heap: str = "1500m",
        master: str = "local[2]",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        port = free_port()
        self.remote = f"sc://127.0.0.1:{port}"
        self.log = folder / "server.log"
        file = folder / "server.properties"
        file.write_text(
            properties_text(
                {
                    **_STATIC,
                    "spark.master": master,
                    **_DELTA,
                    **_DYNAMIC,
                    **tasks_of(master),
                    "spark.driver.memory": heap,
                    **_classes(f"-Dlog4j2.configurationFile={log_settings()} -Dsmelt.log={self.log}"),
                    "spark.connect.grpc.binding.address": "127.0.0.1",
                    "spark.connect.grpc.binding.port": str(port),
                    "spark.sql.warehouse.dir": str(folder / "warehouse"),
                    **(settings or {}),
                }
            )
        )
        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-submit"), "--properties-file", str(file)]
        super().__init__(
            [*command, "--class", _CLASS, "spark-internal"],
            port,
            folder / "server.out",
            folder=folder,
            environment={**os.environ, "SPARK_HOME": str(home)},
            seconds=120,
        )


def _classes(settings: str) -> dict[str, str]:
    """Return settings for Delta's jars and a short-lived JVM, which uses the class archive if one exists."""
    java, jars = check_java(), delta_jars()
    options = jvm_options(settings, brief=True)
    archive = class_archive.archive_of({}, java, jars)
    if archive is None or not class_archive.usable(archive):
        return {"spark.jars": ",".join(map(str, jars)), JVM_OPTIONS: options}
    return {
        class_archive.CLASS_PATH: os.pathsep.join(map(str, jars)),
        JVM_OPTIONS: f"{options} {class_archive.options(archive)}",
    }
