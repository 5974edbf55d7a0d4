"""The lookup of secrets. Databricks is not available: the test replaces its documented modules."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.pipelines import databricks_secrets
from deltasmelt.pipelines.secret_variables import without_secret_variables
from deltasmelt.pipelines.settings import load_pipeline

if TYPE_CHECKING:
    from pathlib import Path

PASSWORD = "gEh31m-Wort"
NOWHERE = "this environment is not Databricks: dbutils is missing"


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databricks_secrets, "_KNOWN", {})


class Utilities:
    """A `dbutils` with a single secret."""

    def __init__(self, value: str = PASSWORD) -> None:
        self.asked: list[tuple[str, str]] = []
        self.value = value
        self.secrets = self

    def get(self, scope: str, key: str) -> str:
        self.asked.append((scope, key))
        if (scope, key) != ("shop", "password"):
            raise RuntimeError(
                f"Secret does not exist with scope: {scope} and key: {key}\n\tat com.databricks.X"
            )
        return self.value


def in_runtime(monkeypatch: pytest.MonkeyPatch, utilities: Any) -> None:
    module = ModuleType("databricks.sdk.runtime")
    module.dbutils = utilities  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", module)


def in_notebook(monkeypatch: pytest.MonkeyPatch, names: dict[str, Any] | None) -> None:
    module = ModuleType("IPython")
    shell = None if names is None else SimpleNamespace(user_ns=names)
    module.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)


def pipeline_file(folder: Path, source: str) -> Path:
    file = folder / "shop.yml"
    file.write_text(
        f"pipeline: shop\nsource: {{host: db, {source}, slot: s, publication: p}}\nlake: {{path: ./lake}}\n"
    )
    return file


def test_pipeline_file_reads_secret_once_without_showing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    utilities = Utilities()
    in_runtime(monkeypatch, utilities)
    file = pipeline_file(
        tmp_path, "password: '${secret:shop/password}', sslpassword: '${secret:shop/password}'"
    )
    pipeline = load_pipeline(file)
    assert pipeline.source.password is not None
    assert pipeline.source.password.get_secret_value() == PASSWORD
    assert PASSWORD not in repr(pipeline)
    assert utilities.asked == [("shop", "password")]
    assert databricks_secrets.secret_values() == {"shop/password": PASSWORD}
    assert without_secret_variables({"secret": "a variable of that name is none"}) == {
        "secret": "a variable of that name is none"
    }


def test_notebook_or_spark_supplies_secret_without_sdk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(LookupError, match=f"^{NOWHERE}$"):
        databricks_secrets.secret("shop/password")
    in_notebook(monkeypatch, {"dbutils": Utilities("of the notebook")})
    assert databricks_secrets.secret("shop/password") == "of the notebook"
    monkeypatch.setattr(databricks_secrets, "_KNOWN", {})
    none: dict[str, Any] = {}
    for names in (None, none):  # a program that has only loaded IPython, a notebook elsewhere
        in_notebook(monkeypatch, names)
        with pytest.raises(LookupError, match=NOWHERE):
            databricks_secrets.secret("shop/password")
    pyspark = ModuleType("pyspark.dbutils")
    pyspark.DBUtils = lambda spark: Utilities(f"of {spark}")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark.dbutils", pyspark)
    sql = ModuleType("pyspark.sql")
    sql.SparkSession = SimpleNamespace(builder=SimpleNamespace(getOrCreate=lambda: "the session"))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark.sql", sql)
    assert databricks_secrets.secret("shop/password") == "of the session"


def test_an_sdk_that_knows_no_workspace_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unconfigured(ModuleType):
        @property
        def dbutils(self) -> Any:
            raise ValueError(f"default auth: no credentials{' anywhere' * 100}\nConfig: host=…")

    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", Unconfigured("databricks.sdk.runtime"))
    with pytest.raises(LookupError) as caught:
        databricks_secrets.secret("shop/password")
    assert str(caught.value).startswith(f"{NOWHERE}; ValueError: default auth: no credentials anywhere")
    assert str(caught.value).endswith("…")
    assert len(str(caught.value)) < 300


def test_missing_secret_names_line_without_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_runtime(monkeypatch, Utilities())
    with pytest.raises(ConfigurationError) as caught:
        load_pipeline(pipeline_file(tmp_path, "password: '${secret:shop/passwort}'"))
    assert caught.value.code == "secret-unreadable"
    assert caught.value.where == f"{tmp_path / 'shop.yml'}:2"
    assert caught.value.message == (
        "the secret shop/passwort cannot be read: Databricks refuses the secret: RuntimeError: "
        "Secret does not exist with scope: shop and key: passwort"
    )
    assert databricks_secrets.secret_values() == {}
