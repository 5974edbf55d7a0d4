"""A catalog that several processes share: Hive's metastore tables in a Derby server of one test.

Each driver accesses the metastore's database directly through JDBC. A metastore service would listen on every
address of the machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pyspark

from deltasmelt.pipelines.demo.embedded_postgres import free_port
from deltasmelt.pipelines.spark.jars import JarSet, jars_of
from deltasmelt.pipelines.spark.java import check_java
from tests.server_process import ServerProcess

_VERSION: Final = "10.16.1.1"
"""Version of the Derby that Spark ships; Derby's network server and client are separate jars."""
_CLIENT: Final = f"derbyclient-{_VERSION}.jar"
_JARS: Final = JarSet(
    what="Derby's server and client",
    name=f"derby-{_VERSION}",
    packages=(f"org.apache.derby:derbynet:{_VERSION}", f"org.apache.derby:derbyclient:{_VERSION}"),
    checksums={
        f"derbynet-{_VERSION}.jar": "e86abd0ea3fadfe8e0f7565049c59b035b4cf7234c056bfe678d5fdfed894382",
        _CLIENT: "b7243184b1df01b946eaf89eb904ed724d1f7493eb7467e85f4c6ffb4a09142b",
    },
)


class Metastore(ServerProcess):
    """A Derby server in a separate JVM, on a free port of the loopback.

    Attributes:
        settings: Spark settings that make the metastore a session's own catalog.
    """

    def __init__(self, folder: Path) -> None:
        server, client = sorted(jars_of(_JARS), key=lambda path: path.name, reverse=True)
        shipped = sorted((Path(pyspark.__file__).parent / "jars").glob("derby*.jar"))
        port = free_port()
        check_java()
        home = os.environ.get("JAVA_HOME")
        super().__init__(
            [
                *(str(Path(home, "bin", "java")) if home else "java", "-Xmx128m", "-XX:TieredStopAtLevel=1"),
                *(f"-Dderby.system.home={folder}", "-cp", ":".join(map(str, [*shipped, server]))),
                *("org.apache.derby.drda.NetworkServerControl", "start", "-noSecurityManager"),
                *("-h", "127.0.0.1", "-p", str(port)),
            ],
            port,
            folder / "derby.out",
            folder=folder,
        )
        option = "spark.hadoop.javax.jdo.option"
        self.settings = {
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            f"{option}.ConnectionURL": f"jdbc:derby://127.0.0.1:{port}/metastore;create=true",
            f"{option}.ConnectionDriverName": "org.apache.derby.client.ClientAutoloadedDriver",
            "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
            "spark.hadoop.hive.metastore.schema.verification": "false",
            "spark.driver.extraClassPath": str(client),
        }
