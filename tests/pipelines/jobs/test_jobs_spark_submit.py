"""The built wheel under spark-submit: the usual commands, in a folder with only the wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from deltasmelt.pipelines.spark.launch import jvm_options
from tests.object_store import lake_text

if TYPE_CHECKING:
    from tests.object_store import ObjectStore

ROOT = Path(__file__).parents[3]
LAYERS = ("bronze", "silver", "gold", "pipelines")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the project's wheel from its source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the wheel into a folder: for a pure wheel, unpacking is installing."""
    target = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


@pytest.fixture
def shop(database: str, store: ObjectStore, tmp_path: Path) -> Path:
    """Create a pipeline file over a source with rows, with its lake in a store."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
        connection.execute("INSERT INTO orders SELECT n, 'order ' || n FROM generate_series(1, 100) AS n")
    file = tmp_path / "pipeline with spaces.yml"
    file.write_text(
        f'pipeline: submitted\nsource: {{dsn: "{database}", slot: submitted, publication: submitted}}\n'
        + lake_text("s3://lake/submitted", store.options())
    )
    return file


def run(installed: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that can import the project only from the wheel."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(cwd), str(installed)]),
        "PYSPARK_PYTHON": sys.executable,
        "SMELT_LOGS": str(cwd),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": jvm_options("", brief=True),
    }
    environment.pop("SPARK_HOME", None)
    return subprocess.run(
        words, check=False, capture_output=True, text=True, cwd=cwd, env=environment, timeout=300
    )


def submit(installed: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of smelt under spark-submit, on two cores."""
    script = installed / "deltasmelt" / "pipelines" / "conf" / "spark-submit" / "submit.sh"
    options = ("--master", "local[2]", "--driver-memory", "1g", "--conf", "spark.ui.enabled=false")
    return run(installed, "sh", str(script), *options, "--", *words, cwd=cwd)


def test_the_wheel_holds_all_data_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    package, pipelines = Path("deltasmelt"), Path("deltasmelt", "pipelines")
    files = {path: path.relative_to(ROOT) for path in (ROOT / package).glob("*.*")}
    files |= {path: package / path.relative_to(ROOT) for name in LAYERS for path in (ROOT / name).rglob("*")}
    files |= {path: pipelines / path.relative_to(ROOT) for path in (ROOT / "conf").rglob("*")}
    files |= {path: pipelines / "error_pages" / path.name for path in (ROOT / "docs/errors").glob("*.md")}
    data = {str(name) for path, name in files.items() if path.is_file() and "__pycache__" not in path.parts}
    assert sorted(data - names) == []
    assert str(package / "py.typed") in data
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "Metadata-Version: 2.4\n" in metadata
    expected = {
        "log4j2.properties",
        "demo/shop.sql",
        "demo/pipeline.yml",
        "demo/documents/customer.yml",
        "demo/expectations/orders.yml",
        "spark-submit/submit.sh",
        "spark-submit/main.py",
        "databricks/databricks.yml",
    }
    assert {f"deltasmelt/pipelines/conf/{name}" for name in expected} <= names
    assert "deltasmelt/pipelines/quality/report.html.j2" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"deltasmelt"}


@pytest.mark.spark
@pytest.mark.postgres
def test_submitted_commands_write_and_read_a_store(
    installed: Path, shop: Path, store: ObjectStore, tmp_path: Path
) -> None:
    """The working folder, first on the path as well, has packages with the layers' names."""
    for name in LAYERS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(f'not ours: {__file__}')\n")
    command = [sys.executable, "-m", "deltasmelt", "bronze", "--until-caught-up", str(shop)]
    read = run(installed, *command, cwd=tmp_path)
    assert read.returncode == 0, read.stderr

    folded = submit(installed, "silver", "--until-caught-up", str(shop), cwd=tmp_path)
    assert folded.returncode == 0, folded.stderr
    commits = store.requests("PUT", "/lake/submitted/silver/orders/_delta_log/0")
    assert len(commits) > 1
    assert {commit.condition for commit in commits if commit.path.endswith(".json")} == {"*"}

    script = tmp_path / "report.sql"
    script.write_text(
        "SELECT count(*) AS rows, max(note) AS last, '${env:HOME} ${x}' AS said FROM silver.orders "
        "WHERE note <> '${spark.app.name}';\nSELECT nte FROM silver.orders;\n"
    )
    process = submit(installed, "sql", str(shop), "-f", str(script), "--output", "json", cwd=tmp_path)
    assert process.returncode != 0, "a command that fails fails the submission"
    # spark-submit prints the driver's standard error on its own standard output.
    row, _, message = process.stdout.partition("\n")
    assert json.loads(row) == {"rows": 100, "last": "order 99", "said": "${env:HOME} ${x}"}, (
        "and no line of Spark's log before the row"
    )
    assert f"error: {script}:2 (statement 2): [UNRESOLVED_COLUMN" in message
    assert "Traceback" not in message + process.stderr
    assert (tmp_path / "spark-submit-sql.log").exists()


@pytest.mark.parametrize("words", [(), ("--master", "local[2]"), ("silver", "pipeline.yml"), ("--",)])
def test_wrong_words_for_the_script_print_its_usage(
    installed: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    script = installed / "deltasmelt" / "pipelines" / "conf" / "spark-submit" / "submit.sh"
    called = run(installed, "sh", str(script), *words, cwd=tmp_path)
    assert called.returncode == 2
    assert "usage:" in called.stderr
