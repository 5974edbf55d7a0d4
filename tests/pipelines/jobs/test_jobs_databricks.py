"""The bundle is what Databricks' own models accept, and calls commands that exist."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import typer.main
from databricks.bundles.jobs import Job
from ruamel.yaml import YAML

from pipelines.cli import app
from pipelines.conf_files import conf_folder

if TYPE_CHECKING:
    from pathlib import Path

BUNDLE = conf_folder() / "databricks"
PROJECT = tomllib.loads((BUNDLE.parent.parent / "pyproject.toml").read_text())["project"]


def load(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text())


def resource_files() -> list[Path]:
    (pattern,) = load(BUNDLE / "databricks.yml")["include"]
    return sorted(BUNDLE.glob(pattern))


def jobs() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path in resource_files():
        resources = load(path)["resources"]
        assert set(resources) == {"jobs"}
        found |= resources["jobs"]
    return found


def tasks() -> list[tuple[str, dict[str, Any]]]:
    return [(f"{name}.{task['task_key']}", task) for name, job in jobs().items() for task in job["tasks"]]


def command_line(task: dict[str, Any]) -> list[str]:
    """The task's parameters with the variables' defaults in place."""
    variables = load(BUNDLE / "databricks.yml")["variables"]
    return [
        re.sub(r"\$\{var\.(\w+)\}", lambda match: str(variables[match[1]]["default"]), word)
        for word in task["python_wheel_task"]["parameters"]
    ]


@pytest.mark.parametrize("name", sorted(jobs()))
def test_databricks_models_accept_each_job(name: str) -> None:
    job = Job.from_dict(jobs()[name])  # type: ignore[arg-type]  # a plain dict is what YAML gives
    assert job.as_dict()["tasks"]


def test_the_models_refuse_a_misspelt_field_at_any_depth() -> None:
    job = jobs()["deltasmelt_stages"]
    job["job_clusters"][0]["new_cluster"]["autoscale"]["min_worker"] = 1
    with pytest.raises(ValueError, match="min_worker"):
        Job.from_dict(job)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "task"), tasks(), ids=[name for name, _ in tasks()])
def test_each_task_calls_a_command_of_smelt_whose_options_parse(name: str, task: dict[str, Any]) -> None:
    wheel = task["python_wheel_task"]
    assert wheel["package_name"] == PROJECT["name"]
    assert wheel["entry_point"] in PROJECT["scripts"]
    group: Any = typer.main.get_command(app)
    command, *words = command_line(task)
    parsed = group.commands[command].make_context(command, words)
    assert parsed.params["file"].name == "pipeline.yml"


def test_a_task_with_an_option_that_the_command_lacks_would_be_noticed() -> None:
    group: Any = typer.main.get_command(app)
    with pytest.raises(Exception, match="--until-caught-upp"):
        group.commands["silver"].make_context("silver", ["pipeline.yml", "--until-caught-upp"])


def test_silver_gold_and_quality_follow_each_other_and_the_reader_stands_alone() -> None:
    stages = {task["task_key"]: task for task in jobs()["deltasmelt_stages"]["tasks"]}
    assert list(stages) == ["silver", "gold", "quality"]
    assert [task.get("depends_on") for task in stages.values()] == [
        None,
        [{"task_key": "silver"}],
        [{"task_key": "gold"}],
    ]
    reader = jobs()["deltasmelt_reader"]
    assert [task["task_key"] for task in reader["tasks"]] == ["bronze"]
    assert reader["continuous"] == {"pause_status": "UNPAUSED"}
    assert "--until-caught-up" not in reader["tasks"][0]["python_wheel_task"]["parameters"]
    assert {job["max_concurrent_runs"] for job in jobs().values()} == {1}


def test_each_task_names_a_cluster_of_its_job_and_the_wheel_that_the_bundle_builds() -> None:
    for job in jobs().values():
        clusters = {cluster["job_cluster_key"] for cluster in job["job_clusters"]}
        assert {task["job_cluster_key"] for task in job["tasks"]} == clusters
    root = (BUNDLE / load(BUNDLE / "databricks.yml")["artifacts"]["deltasmelt"]["path"]).resolve()
    assert (root / "pyproject.toml").is_file()
    for path in resource_files():
        for wheel in re.findall(r"whl: (\S+)", path.read_text()):
            assert (path.parent / wheel).resolve().parent == root / "dist"


def test_what_quality_needs_beside_the_wheel_is_what_the_project_says() -> None:
    (quality,) = [task for name, task in tasks() if name.endswith(".quality")]
    packages = [library["pypi"]["package"] for library in quality["libraries"] if "pypi" in library]
    assert packages == PROJECT["optional-dependencies"]["quality"]


def test_every_variable_that_is_used_is_declared_and_every_declared_one_is_used() -> None:
    used = {name for path in resource_files() for name in re.findall(r"\$\{var\.(\w+)\}", path.read_text())}
    assert used == set(load(BUNDLE / "databricks.yml")["variables"])


def test_the_bundle_file_has_only_sections_that_bundles_have() -> None:
    bundle = load(BUNDLE / "databricks.yml")
    assert set(bundle) == {"bundle", "include", "variables", "artifacts", "targets"}
    assert [name for name, target in bundle["targets"].items() if target.get("default")] == ["dev"]
    for variable in bundle["variables"].values():
        assert set(variable) == {"description", "default"}
