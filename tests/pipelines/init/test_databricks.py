"""`smelt init --databricks`: a bundle that Databricks' models accept, with the pipeline's own names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pytest
from databricks.bundles.jobs import Job

from deltasmelt.pipelines.init.bundle import (
    CLOUDS,
    BundleChoices,
    Cloud,
    bundle_files,
    variables_in,
    without_variables,
)
from deltasmelt.pipelines.private import conf_folder
from tests.pipelines.in_process import smelt_here
from tests.pipelines.jobs import bundle

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

GIVEN: Final = {"run_as": "0000", "warehouse_id": "abc"}
TARGETS: Final = ("dev", "aws", "azure", "gcp", "serverless")
MACHINES: Final = {"aws": "m5d.xlarge", "azure": "Standard_D4ds_v5", "gcp": "n2-standard-4"}
VOLUME: Final = "dbfs:/Volumes/sales/smelt_shop_eu/config"
BESIDE: Final = "put the file next to the pipeline file, and use its name there"
LAST: Final = (
    "the reader starts at the deployment and retries until the pipeline file exists; what each target "
    "runs: docs/how-to/databricks.md\nfor -t serverless write ${secret:shop_eu/SHOP_DSN} instead of "
    "${SHOP_DSN} in the pipeline file: serverless jobs have no such variables"
)
PIPELINE: Final = """\
pipeline: shop.eu
source:
  dsn: ${SHOP_DSN}
  password: "${SHOP_PASSWORD}"
  sslmode: ${MODE:-verify-full}
  slot: s
  publication: p
lake:
  path: abfss://lake@account.dfs.core.windows.net/shop/
  catalog: ${CATALOG:-sales}
  options: {a: '$${X}'}
gold: {documents: [documents/*.yml, one.yml, ./*.document.yml, ../shared/*.yml, "/etc/all.yml", "~/x.yml"]}
quality: {suites: [expectations/*.yml]}
alerts: {webhook: 'https://chat/${HOOK}/${SHOP_DSN}'}
"""


def pipeline_file(folder: Path, text: str = PIPELINE) -> Path:
    file = folder / "shop.yml"
    file.write_text(text)
    return file


def resources(folder: Path, target: str, given: Mapping[str, Any] = GIVEN) -> dict[str, Any]:
    target_resources: dict[str, Any] = bundle.for_target(folder, target, given)["resources"]
    return target_resources


def clusters(folder: Path, target: str) -> list[dict[str, Any]]:
    jobs = resources(folder, target)["jobs"].values()
    return [job_cluster["new_cluster"] for job in jobs for job_cluster in job.get("job_clusters", [])]


def test_bundle_is_written_without_pipeline_secrets(tmp_path: Path) -> None:
    for name in ("b.document.yml", "a.document.yml"):
        (tmp_path / name).touch()
    process = smelt_here("init", "--databricks", pipeline_file(tmp_path), folder=tmp_path)
    assert (process.returncode, process.stderr) == (0, "")
    folder = tmp_path / "databricks"
    whole = bundle.whole(folder)
    assert whole["bundle"]["name"] == "shop_eu"
    assert "artifacts" not in whole
    for target in TARGETS:
        target_resources = resources(folder, target)
        for job in target_resources["jobs"].values():
            assert Job.from_dict(job).as_dict()
        schema = "smelt_shop_eu_dev" if target == "dev" else "smelt_shop_eu"
        words = target_resources["jobs"]["reader"]["tasks"][0]["python_wheel_task"]["parameters"]
        assert words == ["bronze", f"/Volumes/sales/{schema}/config/shop.yml"]
        for cluster in clusters(folder, target):
            assert cluster["spark_env_vars"] == {
                name: f"{{{{secrets/shop_eu/{name}}}}}" for name in ("SHOP_DSN", "SHOP_PASSWORD", "HOOK")
            }
            cloud = target if target in MACHINES else "azure"
            assert cluster["node_type_id"] in {MACHINES[cloud], MACHINES[cloud].replace("xlarge", "large")}
        for _, text in bundle.texts(target_resources):
            if text.endswith(".whl"):
                assert (folder / "resources" / text).resolve().parent == folder.resolve() / "dist"
    lag = resources(folder, "azure")["alerts"]["lag"]["query_text"]
    assert "delta.`abfss://lake@account.dfs.core.windows.net/shop/control/cuts`" in lag
    notebook = (folder / "notebooks" / "read_at_a_cut.py").read_text()
    assert 'text("lake", "abfss://lake@account.dfs.core.windows.net/shop",' in notebook
    assert (folder / "auto_cdc" / "tables.py").is_file()
    assert (
        process.stdout
        == f"""\
wrote {folder}: a bundle for the pipeline shop_eu on azure, catalog sales, 11 files
next:
  mkdir {folder}/dist/ && cp deltasmelt-*.whl {folder}/dist/    # the wheel that the tasks run
  databricks secrets create-scope shop_eu
  databricks secrets put-secret shop_eu SHOP_DSN    # the pipeline file's ${{SHOP_DSN}}
  databricks secrets put-secret shop_eu SHOP_PASSWORD    # the pipeline file's ${{SHOP_PASSWORD}}
  databricks secrets put-secret shop_eu HOOK    # the pipeline file's ${{HOOK}}
  databricks secrets put-acl shop_eu $PRINCIPAL READ    # an application ID
  (cd {folder} && databricks bundle deploy -t azure --var run_as=$PRINCIPAL --var warehouse_id=…)
  databricks fs cp {tmp_path}/shop.yml {VOLUME}/shop.yml
  databricks fs cp -r {tmp_path}/documents {VOLUME}/documents
  databricks fs cp {tmp_path}/one.yml {VOLUME}/one.yml
  databricks fs cp {tmp_path}/a.document.yml {VOLUME}/a.document.yml
  databricks fs cp {tmp_path}/b.document.yml {VOLUME}/b.document.yml
  databricks fs cp -r {tmp_path}/expectations {VOLUME}/expectations
not copied: ../shared/*.yml of gold.documents; {BESIDE}
not copied: /etc/all.yml of gold.documents; {BESIDE}
not copied: ~/x.yml of gold.documents; {BESIDE}
{LAST}
"""
    )


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("lake: {path: 's3://b/l'}", [], ("aws", "main", "s3://b/l")),
        ("lake: {path: 'GS://b/l/'}", [], ("gcp", "main", "GS://b/l")),
        ("lake: {path: '${LAKE:-gs://b/l}', catalog: x}", [], ("gcp", "x", "gs://b/l")),
        (
            "lake: {path: 's3://minio/l'}",
            ["--cloud", "azure", "--catalog", "y"],
            ("azure", "y", "s3://minio/l"),
        ),
        ("lake: {path: 's3://${B}/l'}", [], ("aws", "main", None)),
        ("lake: {path: '${LAKE}'}", ["--cloud", "gcp"], ("gcp", "main", None)),
    ],
)
def test_cloud_and_catalog_default_to_pipeline_file(
    text: str, options: list[str], expected: tuple[str, str, str | None], tmp_path: Path
) -> None:
    file = pipeline_file(tmp_path, f"pipeline: ${{NAME}}\n{text}\n")
    process = smelt_here("init", "--databricks", file, "--out", tmp_path / "b", *options, folder=tmp_path)
    assert process.returncode == 0, process.stderr
    whole = bundle.whole(tmp_path / "b")
    cloud, catalog, lake = expected
    assert whole["bundle"]["name"] == "shop", "the file's, where the pipeline's is not known"
    assert whole["variables"]["stages_node_type"]["default"] == MACHINES[cloud]
    assert whole["variables"]["catalog"]["default"] == catalog
    assert whole["variables"]["lake"].get("default") == lake
    assert ("--var lake=…" in process.stdout) == (lake is None)
    if lake is None:
        with pytest.raises(LookupError, match="lake"):
            bundle.for_target(tmp_path / "b", "aws", GIVEN)


def test_unsupported_bundle_is_single_message(tmp_path: Path) -> None:
    def refused(text: str, *options: str) -> str:
        file = pipeline_file(tmp_path, text)
        process = smelt_here("init", "--databricks", file, *options, folder=tmp_path)
        assert process.returncode in (1, 2)
        assert not (tmp_path / "databricks").exists()
        return process.stderr

    assert "[databricks-lake]" in refused("pipeline: a\nlake: {path: ./lake}\n")
    assert "shop.yml:2" in refused("pipeline: a\nlake: {path: /data/lake}\n")
    assert "[databricks-lake]" in refused("pipeline: a\nlake: {catalog: z}\n", "--cloud", "aws")
    assert "[databricks-cloud]" in refused("pipeline: a\nlake: {path: '${LAKE}'}\n")
    assert "[databricks-cloud]" in refused("- a\n")
    assert "[yaml-syntax]" in refused("pipeline: [\n")
    assert "--dsn" in refused(PIPELINE, "--dsn", "postgresql://db")
    assert "--schema" in refused(PIPELINE, "--schema", "sales")
    assert "[file-missing]" in smelt_here("init", "--databricks", "no.yml", folder=tmp_path).stderr
    alone = smelt_here("init", "--dsn", "postgresql://db", "--cloud", "aws", folder=tmp_path)
    assert (alone.returncode, "--databricks FILE" in alone.stderr) == (2, True)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "databricks" / "resources").mkdir(parents=True)
    existing = tmp_path / "databricks" / "resources" / "reader.yml"
    existing.write_text("mine\n")
    process = smelt_here("init", "--databricks", pipeline_file(tmp_path), folder=tmp_path)
    assert process.returncode == 1
    assert "[file-exists]" in process.stderr
    assert existing.read_text() == "mine\n"
    assert [path for path in (tmp_path / "databricks").rglob("*") if path.is_file()] == [existing]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_replaced_texts_exist_in_bundle_of_checkout(cloud: Cloud) -> None:
    source = conf_folder() / "databricks"
    sources = {path.relative_to(source).as_posix(): path.read_text() for path in bundle.files_of(source)}
    choices = BundleChoices(
        name="a-b", cloud=cloud, catalog='o"dd\\1', lake="s3://b/it's", file="p q.yml", variables=()
    )
    files = bundle_files(sources, choices)
    assert set(files) == set(sources)
    assert not re.search(
        r"\bdeltasmelt_dev\b|SMELT_DSN|spark_env_vars|artifacts:|\.\./\.\./dist", "".join(files.values())
    )
    with pytest.raises(LookupError, match="occurs 0 times"):
        bundle_files(
            {**sources, "databricks.yml": sources["databricks.yml"].replace("catalog:", "cat:")}, choices
        )


def test_variables_of_a_text() -> None:
    assert list(variables_in("${A} $${B} ${C:-d} $E ${secret:s/k} ${A}")) == ["A", "A"]
    assert without_variables("x$${B}${C:-d}${D:-}") == "x${B}d"
    assert without_variables("${A}") is None
