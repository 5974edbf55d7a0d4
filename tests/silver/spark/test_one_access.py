"""Questions about the kind of a Spark session have one place: the access (`silver.spark.access`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
ACCESS: Final = "silver/spark/"
STARTS: Final = "pipelines/spark/"
KIND: Final = re.compile(r"\bis_remote\((?!self)|\bisinstance\([^()]*(?:\([^()]*\))?, (?:Connect|Jvm)\)")
PRIVATE: Final = re.compile(
    r"pyspark\.sql\.connect|\._(?:jvm|jsc|gateway|jsparkSession|jdf|jconf|client|channel|session_id)\b"
    r"|\._(?:active_spark_context|instantiatedSession|activeSession|active_session|ensure_initialized)\b"
)
SESSION: Final = re.compile(r"\.(?:newSession|cloneSession|interruptAll|interruptTag|sparkContext)\b")
SETTING: Final = re.compile(r"\.conf\.(?:get|set|unset|isModifiable|getAll)\b")
ASKS: Final = {
    "bronze/lake/catalog/commits.py": 1,  # bronze knows no access
}
"""Modules outside the access that ask which kind a session is, and how often; none may be added."""
OPENS: Final = {"pipelines/demo/show.py": 1}
"""Modules that make, cancel or configure a session without the access; none may be added."""


def counted(pattern: re.Pattern[str], *, outside: tuple[str, ...]) -> dict[str, int]:
    """How often a pattern is found, by module, outside some folders."""
    rooms = ("bronze", "silver", "gold", "pipelines", "deltasmelt")
    counts = {}
    for path in (path for room in rooms for path in (ROOT / room).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if not name.startswith(outside) and (all_ := pattern.findall(path.read_text(encoding="utf-8"))):
            counts[name] = len(all_)
    return counts


def test_only_access_modules_distinguish_session_kinds() -> None:
    assert counted(KIND, outside=(ACCESS,)) == ASKS


def test_only_access_modules_read_and_change_settings() -> None:
    assert counted(SETTING, outside=(ACCESS, STARTS)) == {"bronze/lake/catalog/commits.py": 1}


def test_only_access_modules_name_private_pyspark_attributes() -> None:
    assert counted(PRIVATE, outside=(ACCESS, STARTS)) == {}


def test_only_access_modules_open_or_cancel_sessions() -> None:
    assert counted(SESSION, outside=(ACCESS, STARTS)) == OPENS
