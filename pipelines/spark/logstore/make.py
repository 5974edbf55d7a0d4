"""Compile ``deltasmelt-logstore.jar``: ``python -m deltasmelt.pipelines.spark.logstore.make``.

The jar is part of the package, because a user of Spark need not have a compiler. Equal compilers make equal
bytes, because entries have no times; a test compares the bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from deltasmelt.pipelines.spark.jars import delta_jars, store_jars

HERE: Final = Path(__file__).parent
SOURCE: Final = HERE / "ConditionalS3LogStore.java"
JAR: Final = HERE / "deltasmelt-logstore.jar"
_RELEASE: Final = "17"
_BEGINNING: Final = (1980, 1, 1, 0, 0, 0)


def make(target: Path) -> None:
    """Compile the source into a jar.

    Raises:
        CalledProcessError, OSError: the compiler refuses the source, or is missing.
    """
    import pyspark  # noqa: PLC0415

    spark = Path(pyspark.__file__).parent / "jars"
    jars = [*delta_jars(), *store_jars("s3")]
    classes = os.pathsep.join([*map(str, jars), f"{spark}/*"])
    with tempfile.TemporaryDirectory() as folder:
        options = ["--release", _RELEASE, "-g:source,lines", "-cp", classes, "-d", folder]
        subprocess.run(["javac", *options, str(SOURCE)], check=True)  # noqa: S603, S607 - the one on the path
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as jar:
            for path in sorted(Path(folder).rglob("*.class")):
                jar.writestr(zipfile.ZipInfo(str(path.relative_to(folder)), _BEGINNING), path.read_bytes())


if __name__ == "__main__":
    make(JAR)
    sys.stdout.write(f"{JAR.name}\n")
