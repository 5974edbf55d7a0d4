"""Secrets of Databricks: what a pipeline file means by ``${secret:scope/key}``.

On a cluster a secret can be put into an environment variable (``{{secrets/scope/key}}``), and nothing here is
needed. Serverless compute has no such variables. There `dbutils.secrets` is asked.

What `dbutils` is depends on where Python runs, so three ways are tried, each only if its module is there:

1. ``databricks.sdk.runtime``: the runtime's own one; with the SDK elsewhere, one that asks the workspace.
2. The variable ``dbutils`` of a notebook, where the program runs in one.
3. ``pyspark.dbutils.DBUtils(spark)``: runtimes without the SDK, and Databricks Connect.

Only the process that Databricks started has it. What it was told is kept in memory. The reader's process gets
it with its orders (`pipelines.runtime.reader_supervision`), never through an environment or a file.

Source: https://docs.databricks.com/aws/en/dev-tools/databricks-utils
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KNOWN: Final[dict[str, str]] = {}
"""Values by ``scope/key``: those that this process asked for, and those that it was given."""
_SHOWN: Final = 200
"""Letters of a refusal that are repeated; behind them is the trace of a JVM."""


def secret(name: str) -> str:
    """The value of a secret.

    Args:
        name: ``scope/key``.

    Raises:
        LookupError: there is none, or it cannot be asked for here; says why.
    """
    if name not in _KNOWN:
        scope, _, key = name.partition("/")
        utilities = _utilities()
        try:
            _KNOWN[name] = str(utilities.secrets.get(scope=scope, key=key))
        except Exception as error:
            raise LookupError(f"Databricks refuses it: {_reason(error)}") from error
    return _KNOWN[name]


def known() -> Mapping[str, str]:
    """What this process was told, for a child of it."""
    return dict(_KNOWN)


def give(secrets: Mapping[str, str]) -> None:
    """Values that the parent process was told."""
    _KNOWN.update(secrets)


def _utilities() -> Any:
    """`dbutils`.

    Raises:
        LookupError: there is none here.
    """
    refused = []
    for way in _WAYS:
        try:
            found = way()
        except ImportError:
            continue
        except Exception as error:  # noqa: BLE001 - of an SDK that knows no workspace, of a Spark that does not start
            refused.append(_reason(error))
            continue
        if found is not None:
            return found
    raise LookupError("; ".join(["this is not Databricks: it has no dbutils", *refused]))


def _of_the_sdk() -> Any:
    return importlib.import_module("databricks.sdk.runtime").dbutils


def _of_a_notebook() -> Any:
    python = sys.modules.get("IPython")  # whoever runs in a notebook has it
    shell = None if python is None else python.get_ipython()
    return None if shell is None else shell.user_ns.get("dbutils")


def _of_spark() -> Any:
    utilities = importlib.import_module("pyspark.dbutils")  # Databricks' own pyspark alone has it
    session = importlib.import_module("pyspark.sql").SparkSession
    return utilities.DBUtils(session.builder.getOrCreate())


_WAYS: Final[tuple[Callable[[], Any], ...]] = (_of_the_sdk, _of_a_notebook, _of_spark)


def _reason(error: Exception) -> str:
    """The first line of what is said, without the trace that a JVM adds."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    shown = first if len(first) <= _SHOWN else f"{first[:_SHOWN]}…"
    return f"{type(error).__name__}: {shown}" if first else type(error).__name__
