"""Sets of jars that Spark needs: where Maven Central has them, and what each must be.

Delta's own, and the connectors of object stores. `hadoop-aws` names the AWS SDK as one bundle of half a
gigabyte; here are the modules of it that S3A uses, nine megabytes. `sts` is for roles (a web identity, say).
What a set leaves out ships with Spark, at a version that serves.

https://hadoop.apache.org/docs/r3.4.2/hadoop-aws/tools/hadoop-aws/index.html;
https://hadoop.apache.org/docs/r3.4.2/hadoop-azure/abfs.html.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bronze.lake.stores import AZURE, GOOGLE, S3
from pipelines.spark.store_checksums import AZURE_JARS, S3_JARS

if TYPE_CHECKING:
    from collections.abc import Mapping

DELTA_VERSION: Final = "4.4.0"
CLIENTS: Final = {"4.1": ("3.4.2", "2.29.52"), "4.2": ("3.5.0", "2.35.4")}
"""By the line of Spark: Hadoop's client that it ships, and the AWS SDK that this one is built with.

A connector must be of the same version as the client.
"""
_SDK: Final = "software.amazon.awssdk"
_SHIPPED: Final = (
    "org.apache.httpcomponents:httpclient",
    "org.apache.httpcomponents:httpcore",
    "commons-codec:commons-codec",
    "commons-logging:commons-logging",
    "org.slf4j:slf4j-api",
)
_UNUSED: Final = (f"{_SDK}:bundle", f"{_SDK}:netty-nio-client", "org.wildfly.openssl:wildfly-openssl")
_NOT_FOR_S3: Final = {
    "4.1": (*_UNUSED, "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3", *_SHIPPED),
    "4.2": (*_UNUSED, *_SHIPPED),  # its S3A reads by the accelerator, unless told otherwise
}


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that belong together.

    Attributes:
        what: names them in messages.
        name: of their folder in the cache.
        packages: Maven coordinates that Ivy resolves.
        without: ``group:artifact`` that it leaves out.
        checksums: SHA-256 by file name, as Maven Central has them.
    """

    what: str
    name: str
    packages: tuple[str, ...]
    checksums: Mapping[str, str]
    without: tuple[str, ...] = ()


_DELTA_JARS: Final = {
    "4.1": {
        "delta-spark_4.1_2.13-4.4.0.jar": "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10",
        "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
        "delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
        "delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
        "delta-kernel-unitycatalog-4.4.0.jar": (
            "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"
        ),
    },
    "4.2": {
        "delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
        "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
        "delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
        "delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
        "delta-kernel-unitycatalog-4.4.0.jar": (
            "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"
        ),
    },
}
"""By the line of Spark. Everything else that Delta names as a dependency ships with Spark."""

LINES: Final = tuple(_DELTA_JARS)
"""Lines of Spark whose jars are known."""


def delta_set(line: str) -> JarSet:
    """Delta's jars for a line of Spark (``4.1``)."""
    return JarSet(
        "Delta's jars",
        f"delta-{DELTA_VERSION}-spark-{line}",
        (f"io.delta:delta-spark_{line}_2.13:{DELTA_VERSION}",),
        _DELTA_JARS[line],
    )


def store_set(scheme: str, line: str) -> JarSet | None:
    """The connector of a store; None of Google's, which the user gives.

    Args:
        scheme: of the store's URLs.
        line: of Spark (``4.1``).
    """
    if scheme in GOOGLE:
        return None
    hadoop, sdk = CLIENTS[line]
    if scheme in S3:
        modules = (f"{_SDK}:{name}:{sdk}" for name in ("s3", "s3-transfer-manager", "apache-client", "sts"))
        packages: tuple[str, ...] = (f"org.apache.hadoop:hadoop-aws:{hadoop}", *modules)
        return JarSet("the jars for S3", f"s3-hadoop-{hadoop}", packages, S3_JARS[hadoop], _NOT_FOR_S3[line])
    if scheme in AZURE:
        packages = (f"org.apache.hadoop:hadoop-azure:{hadoop}",)
        return JarSet("the jars for Azure", f"azure-hadoop-{hadoop}", packages, AZURE_JARS[hadoop], _SHIPPED)
    return None
