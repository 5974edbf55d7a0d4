"""Check Java, which Spark needs, before any slow step.

The module imports only the standard library and deltasmelt's errors, so that the Makefile can run the check
before an installation: ``python -m deltasmelt.pipelines.spark.java``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from deltasmelt.bronze.errors import ConfigurationError

_VERSIONS: Final = (17, 21)
_REMEDY: Final = (
    "install a Java 17 or 21 runtime (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17) and point JAVA_HOME or PATH to it"
)


def check_java() -> str:
    """Refuse a wrong Java early, with a remedy, because Spark would fail late.

    Return the program and the text that its ``-version`` prints, with the name of the build.

    Raises:
        ConfigurationError: Java is missing, or its version does not run Spark 4.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None or not Path(program).exists():
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise ConfigurationError("Java is missing", code="java-missing", where=where, remedy=_REMEDY)
    said = subprocess.run([program, "-version"], check=False, capture_output=True, text=True).stderr  # noqa: S603
    match = re.search(r'version "(\d+)', said)
    version = int(match[1]) if match else None
    if version not in _VERSIONS:
        found = f"Java {version}" if version else "an unknown Java version"
        raise ConfigurationError(
            f"{found} was found, Spark needs 17 or 21", code="java-version", where=program, remedy=_REMEDY
        )
    return f"{program}\n{said}"


if __name__ == "__main__":
    try:
        check_java()
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
