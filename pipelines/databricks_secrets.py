"""Secrets of Databricks: the values of ``${secret:scope/key}`` in a pipeline file.

On a cluster an environment variable can hold a secret (``{{secrets/scope/key}}``), and this module is not
needed. Serverless compute has no such variables; there `dbutils.secrets` has the values.

Only the process started by Databricks has `dbutils`. The process keeps the values in memory. The reader's
process receives the values with its orders (`pipelines.runtime.reader_supervision`), never through an
environment or a file.

Source: https://docs.databricks.com/aws/en/dev-tools/databricks-utils
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_KNOWN: Final[dict[str, str]] = {}
"""Values by ``scope/key``, read by this process or received from its parent."""
_SHOWN: Final = 200
"""Length of a refusal's quoted part; a JVM's trace follows."""


def secret(name: str) -> str:
    """Return the value of a secret, ``scope/key``.

    Raises:
        LookupError: the secret does not exist, or cannot be read here; the message has the reason.
    """
    if name not in _KNOWN:
        scope, _, key = name.partition("/")
        utilities = _utilities()
        try:
            _KNOWN[name] = str(utilities.secrets.get(scope=scope, key=key))
        except Exception as error:
            raise LookupError(f"Databricks refuses the secret: {_reason(error)}") from error
    return _KNOWN[name]


def secret_values() -> Mapping[str, str]:
    """Return this process's values, for a child process."""
    return dict(_KNOWN)


def give(secrets: Mapping[str, str]) -> None:
    """Store values received from the parent process."""
    _KNOWN.update(secrets)


def _utilities() -> Any:
    """Return `dbutils`; raise a LookupError if `dbutils` does not exist here."""
    refused = []
    for load in _WAYS:
        try:
            utilities = load()
        except ImportError:
            continue
        except Exception as error:  # noqa: BLE001 - of an SDK that knows no workspace, of a Spark that does not start
            refused.append(_reason(error))
            continue
        if utilities is not None:
            return utilities
    raise LookupError("; ".join(["this environment is not Databricks: dbutils is missing", *refused]))


def _of_the_sdk() -> Any:
    # The runtime's own module; elsewhere the SDK's, which queries the workspace.
    return importlib.import_module("databricks.sdk.runtime").dbutils


def _of_a_notebook() -> Any:
    # The variable `dbutils` of a notebook, for a program inside a notebook.
    python = sys.modules.get("IPython")  # whoever runs in a notebook has it
    shell = None if python is None else python.get_ipython()
    return None if shell is None else shell.user_ns.get("dbutils")


def _of_spark() -> Any:
    # Runtimes without the SDK, and Databricks Connect.
    utilities = importlib.import_module("pyspark.dbutils")  # Databricks' own pyspark alone has it
    session = importlib.import_module("pyspark.sql").SparkSession
    return utilities.DBUtils(session.builder.getOrCreate())


# `dbutils` depends on Python's place: three ways, each only with its module installed.
_WAYS: Final[tuple[Callable[[], Any], ...]] = (_of_the_sdk, _of_a_notebook, _of_spark)


def _reason(error: Exception) -> str:
    """Return the first line of a refusal, without a JVM's trace."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    text = first if len(first) <= _SHOWN else f"{first[:_SHOWN]}…"
    return f"{type(error).__name__}: {text}" if first else type(error).__name__
