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

if TYPE_CHECKING:
    from collections.abc import Mapping

DELTA_VERSION: Final = "4.4.0"
HADOOP_VERSION: Final = "3.4.2"
"""Of the client that Spark 4.1 ships; a connector must be of the same."""
_SDK: Final = "software.amazon.awssdk"
_SDK_VERSION: Final = "2.29.52"


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


_S3: Final = JarSet(
    "the jars for S3",
    f"s3-hadoop-{HADOOP_VERSION}",
    (
        f"org.apache.hadoop:hadoop-aws:{HADOOP_VERSION}",
        *(f"{_SDK}:{name}:{_SDK_VERSION}" for name in ("s3", "s3-transfer-manager", "apache-client", "sts")),
    ),
    {
        "annotations-2.29.52.jar": "8cd8bd8afd7eca5a367f69fd87427f6d9f3e7d359962122da24d71f1963f00cd",
        "apache-client-2.29.52.jar": "c96494be30ecac6f0ab7a35fdd91a4c77ca8a5daf62f3d9d84644ef0f0524dc6",
        "arns-2.29.52.jar": "f5a4d1d9b4e4fc63c9bda49bcf1c59d23fd876b276c6b43aaca12969337303a6",
        "auth-2.29.52.jar": "4d8143b6198dc7a530c2ccdd813129c132b96736086c0d4fea85480b9bdbc5fe",
        "aws-core-2.29.52.jar": "eb560c064fbaac7e2e7f4a77ac343d3083bea0d7f6e2c69ba022d3f3e859be90",
        "aws-query-protocol-2.29.52.jar": "1b117672963ee5059c45f2aadb110f191b578d108d8f08d7c7a59e6c0b098a8e",
        "aws-xml-protocol-2.29.52.jar": "daf87b429373ad586d165003b5b1d4fe498c6472eb65ec9a9e2aa7d56f3917dd",
        "checksums-2.29.52.jar": "bca99ff25c9b917d6be03e5dce78ad5328e7dca485e96024fa8476e4192a800a",
        "checksums-spi-2.29.52.jar": "21193b9b648843dcaff493f0dd80abab9ee6871b203b9218120554698d8f7b8a",
        "crt-core-2.29.52.jar": "4e1f33de21b688695fec91b977ddfa99e9d376edcbad06a62b0c138c60b37de4",
        "endpoints-spi-2.29.52.jar": "e54f246c668d70b55cffe0c8fad18d4465e74e22db75139918bd30610093d1e6",
        "eventstream-1.0.1.jar": "0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822",
        "hadoop-aws-3.4.2.jar": "d2d24e6b715b5656b9d238bf13b6682a07e2004dd36aad74a73aeb854319f4d9",
        "http-auth-2.29.52.jar": "d8aa3bd376aaec7196396e65fe8755f1fdd169e51357f8128ecdc7d23a687450",
        "http-auth-aws-2.29.52.jar": "7ae124e81ac0c2860bb61fdde34a388dbe823fef8509dd46a6bec805ada90308",
        "http-auth-aws-eventstream-2.29.52.jar": (
            "565a4aacce955c5ffaed551f6faaaa958e9e92b2f8514c8482f664edb2bab576"
        ),
        "http-auth-spi-2.29.52.jar": "7a2168c5a7baa856d7ae9f9c4f7522d2db9f1361108c38f5b6ece66f249e6a2d",
        "http-client-spi-2.29.52.jar": "8ea61ce3b527779fbfe119e0775c4b7cfdf274a979b1e50596a634685a5b6542",
        "identity-spi-2.29.52.jar": "85104635abf9e5c044aaf7f8951b63efc2ef82051b5ee303571ee2e1fd8b46d0",
        "json-utils-2.29.52.jar": "2652cdb3668311bcff6e643c8612b9fea266423ae1ce33743c84dd7f77904311",
        "metrics-spi-2.29.52.jar": "1db2e3da338148ee40a716e1733c9a5b99e9e6daa4db3aa8bd7e718adafa2510",
        "profiles-2.29.52.jar": "fef84619d101838ba45f48d0caddb09a85d9ed8bf869095bd7d2064796856cf7",
        "protocol-core-2.29.52.jar": "7b32e41a3743b422d2edec1670f60b4c1e512fcd5ab7a53fef20742d6b9104d1",
        "reactive-streams-1.0.4.jar": "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28",
        "regions-2.29.52.jar": "5ee0e26277c679ffa70d83923b0d5f77a53066ecde8610f28be1856947d60eaf",
        "retries-2.29.52.jar": "ca3752ba31399721980c6398992921ff5aa164e084b4c14484333df58c76a353",
        "retries-spi-2.29.52.jar": "a4218ea742fc9e07a620629d7a258bfd92b8ea3ef75f1b99193d0898ca3efe99",
        "s3-2.29.52.jar": "abaedea7e68063e9c4ab090f80d14b9884c57b50953bfe6e5acaa23025609efa",
        "s3-transfer-manager-2.29.52.jar": "0c9e654637247187a7e2494eb7a8799477a772a7d554cd3ae787cd3e3bae3c55",
        "sdk-core-2.29.52.jar": "ea8e9856569f85075a8a806d0481c4bd848c98b24fd6d706fc0b5883fc4604dc",
        "sts-2.29.52.jar": "6495d0457f4e4c3724d8c9c5fe4f6f98c9530a22f92449c4cca5fd03622e4edb",
        "third-party-jackson-core-2.29.52.jar": (
            "eaece3eb60beb8ec09d8a4f48d5bff4110010b03cc23688bdcf2af2eb075cac6"
        ),
        "utils-2.29.52.jar": "f150a38f2fec14ced2de6459bfe804f647c88baa573b218646ef89b436a29d42",
    },
    without=(
        f"{_SDK}:bundle",
        f"{_SDK}:netty-nio-client",
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3",
        "org.wildfly.openssl:wildfly-openssl",
        "org.apache.httpcomponents:httpclient",
        "org.apache.httpcomponents:httpcore",
        "commons-codec:commons-codec",
        "commons-logging:commons-logging",
        "org.slf4j:slf4j-api",
    ),
)
_AZURE: Final = JarSet(
    "the jars for Azure",
    f"azure-hadoop-{HADOOP_VERSION}",
    (f"org.apache.hadoop:hadoop-azure:{HADOOP_VERSION}",),
    {
        "hadoop-azure-3.4.2.jar": "f02ab756037abaecc45ea1869144ad3a69e25ccd84062bc37805837ca254e21c",
        "azure-storage-7.0.1.jar": "32249cf9b550e247e257c0a508f93526d35e072509aa637fd33b3d54e267b1e2",
        "azure-keyvault-core-1.0.0.jar": "d8c6ca5bc1c50fd2c74d81b8731b67aa72fa5c9e086623439ba4e950138937a0",
        "hadoop-shaded-guava-1.4.0.jar": "a5dd4b1ca2521ad66cc555f784c4d35927171ed04d263d4b233cebab745430b5",
        "jetty-util-9.4.57.v20241219.jar": "6ccbf678716778e316cc097d8aada4fe2a2e16c0bbfd8a1763204d6724b423f4",
        "jetty-util-ajax-9.4.57.v20241219.jar": (
            "67af50dd7714803b1bcdfabac181dd8b279d0ba6ba7fd27ea80c5b2099016542"
        ),
        "wildfly-openssl-2.1.4.Final.jar": "95decbc5d088b40e85f58d7726b8c8f4e3be6312a0f2660c2d714a23cee80279",
    },
    without=(
        "org.apache.httpcomponents:httpclient",
        "org.apache.httpcomponents:httpcore",
        "commons-codec:commons-codec",
        "commons-logging:commons-logging",
        "org.slf4j:slf4j-api",
    ),
)


def store_set(scheme: str) -> JarSet | None:
    """The connector of a store, by the scheme of its URLs; None of Google's, which the user gives."""
    if scheme in GOOGLE:
        return None
    return _S3 if scheme in S3 else _AZURE if scheme in AZURE else None
