"""Databricks' own models accept the bundle, target by target, and its commands exist.

The models come from `databricks-bundles`, generated from the source of the CLI's JSON schema. The models
cover resources alone. The rest is compared with `SETTINGS`, written from the documentation: the CLI's licence
does not permit a copy of its schema.
"""

from __future__ import annotations

import ast
import re
import tomllib
from typing import Any, Final

import jsonschema
import pytest
import typer.main
from databricks.bundles.alerts import Alert
from databricks.bundles.jobs import Job
from databricks.bundles.pipelines import Pipeline
from databricks.bundles.schemas import Schema
from databricks.bundles.volumes import Volume

from deltasmelt.pipelines.cli import app
from deltasmelt.pipelines.private import conf_folder
from tests.pipelines.jobs import bundle

BUNDLE: Final = conf_folder() / "databricks"
PROJECT: Final = tomllib.loads((BUNDLE.parent.parent / "pyproject.toml").read_text())["project"]
MODELS: Final[dict[str, Any]] = {"alerts": Alert, "jobs": Job, "schemas": Schema, "volumes": Volume}
GIVEN: Final = {"lake": "s3://lake/shop", "run_as": "0000-1111", "warehouse_id": "abc123"}
PRODUCTION: Final = ("aws", "azure", "gcp", "serverless")

TEXT: Final = {"type": "string"}
TEXTS: Final = {"type": "object", "additionalProperties": TEXT}


def mapping(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


IDENTITY: Final = {"service_principal_name": TEXT, "user_name": TEXT, "group_name": TEXT}
LEVEL: Final = {"enum": ["CAN_MANAGE", "CAN_VIEW", "CAN_RUN"]}
COMMON: Final = {
    "permissions": {"type": "array", "items": {**mapping(level=LEVEL, **IDENTITY), "required": ["level"]}},
    "resources": {"type": "object", "propertyNames": {"enum": sorted(MODELS)}},
    "run_as": mapping(**IDENTITY),
    "workspace": mapping(root_path=TEXT, host=TEXT, artifact_path=TEXT, file_path=TEXT),
}
TARGET: Final = mapping(
    default={"type": "boolean"},
    mode={"enum": ["development", "production"]},
    presets=mapping(tags=TEXTS, name_prefix=TEXT),
    variables={"type": "object"},
    **COMMON,
)
VARIABLE: Final = mapping(description=TEXT, default={}, type={"const": "complex"})
SETTINGS: Final = mapping(
    bundle={**mapping(name={"type": "string", "pattern": r"^[\w-]+$"}), "required": ["name"]},
    include={"type": "array", "items": TEXT},
    variables={"type": "object", "additionalProperties": {**VARIABLE, "required": ["description"]}},
    artifacts={
        "type": "object",
        "additionalProperties": mapping(type={"const": "whl"}, path=TEXT, build=TEXT),
    },
    targets={"type": "object", "additionalProperties": TARGET},
    **COMMON,
)


def of(target: str) -> dict[str, dict[str, Any]]:
    """Return the resources of one target, by kind and name."""
    by_kind: dict[str, dict[str, Any]] = bundle.for_target(BUNDLE, target, GIVEN)["resources"]
    return by_kind


def jobs(target: str) -> dict[str, dict[str, Any]]:
    return of(target)["jobs"]


def tasks(target: str) -> list[tuple[str, dict[str, Any]]]:
    return [(name, task) for name, job in jobs(target).items() for task in job["tasks"]]


def test_every_file_has_only_settings_that_bundles_have() -> None:
    for path in bundle.files_of(BUNDLE):
        jsonschema.validate(bundle.load(path), SETTINGS)
    with pytest.raises(jsonschema.ValidationError, match="prefix"):
        jsonschema.validate({"targets": {"dev": {"presets": {"prefix": "dev"}}}}, SETTINGS)


@pytest.mark.parametrize("target", [*PRODUCTION, "dev"])
def test_databricks_models_accept_every_resource_of_each_target(target: str) -> None:
    resources = of(target)
    for kind, of_kind in resources.items():
        for resource in of_kind.values():
            assert MODELS[kind].from_dict(resource).as_dict()
    production = {"alerts", "jobs", "schemas", "volumes"}
    assert set(resources) == production - (set() if target in PRODUCTION else {"alerts"})
    definition = bundle.as_written(BUNDLE, target)
    for kind, of_kind in definition.items():
        for resource in of_kind.values():
            assert MODELS[kind].from_dict(resource).as_dict(), "also before variables are in their places"
    for path, text in bundle.texts(definition):
        value: Any = resources
        for step in path:
            value = value[step]
        if "${" in text and not isinstance(value, str):  # as the CLI's schema has it
            assert re.fullmatch(r"\$\{var\.[a-zA-Z]+([-_]?[a-zA-Z0-9]+)*\}", text), path


@pytest.mark.parametrize("target", [*PRODUCTION, "dev"])
def test_task_with_survivable_failure_sends_mail(target: str) -> None:
    for job in jobs(target).values():
        tasks = {task["task_key"]: task for task in job["tasks"]}
        survived = [
            on["task_key"]
            for task in tasks.values()
            if task.get("run_if") == "ALL_DONE"
            for on in task["depends_on"]
        ]
        for name in survived:
            assert tasks[name]["email_notifications"]["on_failure"]
            assert tasks[name]["webhook_notifications"] == job["webhook_notifications"]


def test_models_reject_misspelt_field_at_any_depth() -> None:
    job = jobs("aws")["stages"]
    job["job_clusters"][0]["new_cluster"]["autoscale"]["min_worker"] = 1
    with pytest.raises(ValueError, match="min_worker"):
        Job.from_dict(job)  # type: ignore[arg-type]  # a plain dict is what YAML gives
    alert = of("aws")["alerts"]["lag"]
    alert["evaluation"]["notification"]["retriger_seconds"] = 1
    with pytest.raises(ValueError, match="retriger_seconds"):
        Alert.from_dict(alert)


@pytest.mark.parametrize("target", [*PRODUCTION, "dev"])
def test_each_task_calls_smelt_with_parsing_options(target: str) -> None:
    group: Any = typer.main.get_command(app)
    for _, task in tasks(target):
        wheel = task["python_wheel_task"]
        assert wheel["package_name"] == PROJECT["name"]
        assert wheel["entry_point"] in PROJECT["scripts"]
        command, *words = wheel["parameters"]
        parsed = group.commands[command].make_context(command, words)
        schema = "deltasmelt_dev" if target == "dev" else "deltasmelt"
        assert str(parsed.params["file"]) == f"/Volumes/main/{schema}/config/pipeline.yml"


def test_unknown_option_in_task_fails_parsing() -> None:
    group: Any = typer.main.get_command(app)
    with pytest.raises(Exception, match="--until-caught-upp"):
        group.commands["silver"].make_context("silver", ["pipeline.yml", "--until-caught-upp"])


@pytest.mark.parametrize("target", [*PRODUCTION, "dev"])
def test_what_follows_what_and_what_runs_for_ever(target: str) -> None:
    target_jobs = jobs(target)
    order = {
        name: [
            (task["task_key"], [dependency["task_key"] for dependency in task.get("depends_on", [])])
            for task in job["tasks"]
        ]
        for name, job in target_jobs.items()
    }
    assert order == {
        "reader": [("bronze", [])],
        "stages": [("silver", []), ("gold", ["silver"])],
        "maintain": [("maintain", [])],
        "quality": [("quality", [])],
        "continuous_stages": [("silver", []), ("gold", [])],
    }
    assert {job["max_concurrent_runs"] for job in target_jobs.values()} == {1}
    for job in target_jobs.values():
        words = [word for task in job["tasks"] for word in task["python_wheel_task"]["parameters"]]
        if "continuous" in job:  # has no order of tasks, no schedule, and no end by which to measure
            assert job["continuous"]["task_retry_mode"] == "ON_FAILURE"
            assert not {"schedule", "health", "timeout_seconds"} & set(job)
            assert "--until-caught-up" not in words
        else:
            assert job["health"]["rules"][0]["metric"] == "RUN_DURATION_SECONDS"
            assert job["email_notifications"]["on_duration_warning_threshold_exceeded"]
            assert job["timeout_seconds"] > job["health"]["rules"][0]["value"]
        assert job["email_notifications"]["on_failure"] == ["somebody@example.com"]
    assert target_jobs["maintain"]["schedule"]["quartz_cron_expression"] == "0 30 3 * * ?"


def test_one_variable_chooses_how_the_stages_run() -> None:
    def states(**given: str) -> tuple[str, str]:
        target_jobs = bundle.for_target(BUNDLE, "aws", {**GIVEN, **given})["resources"]["jobs"]
        return target_jobs["stages"]["schedule"]["pause_status"], target_jobs["continuous_stages"][
            "continuous"
        ]["pause_status"]

    assert states() == ("UNPAUSED", "PAUSED")
    assert states(scheduled_stages="PAUSED", continuous_stages="UNPAUSED") == ("PAUSED", "UNPAUSED")


def test_task_uses_job_cluster_or_wheel_environment() -> None:
    """The environment installs the wheel that the bundle builds."""
    root = (BUNDLE / bundle.whole(BUNDLE)["artifacts"]["deltasmelt"]["path"]).resolve()
    assert (root / "pyproject.toml").is_file()
    for target in (*PRODUCTION, "dev"):
        for name, job in jobs(target).items():
            clusters = {cluster["job_cluster_key"] for cluster in job.get("job_clusters", [])}
            environments = {
                environment["environment_key"]: environment["spec"]
                for environment in job.get("environments", [])
            }
            serverless = (target, name) == ("serverless", "quality")
            assert bool(environments) == serverless
            for task in job["tasks"]:
                if serverless:
                    assert task["environment_key"] in environments
                    assert not {"job_cluster_key", "libraries"} & set(task)
                else:
                    assert task["job_cluster_key"] in clusters
                    assert {"whl": "../../../dist/*.whl"} in task["libraries"]
    for path in bundle.files_of(BUNDLE)[1:]:
        for wheel in re.findall(r"(?:whl:|-) (\.\./\S+\.whl)", path.read_text()):
            assert (path.parent / wheel).resolve().parent == root / "dist"


def test_quality_libraries_match_project_requirements() -> None:
    requirements = PROJECT["optional-dependencies"]["quality"]
    (task,) = jobs("aws")["quality"]["tasks"]
    assert [library["pypi"]["package"] for library in task["libraries"] if "pypi" in library] == requirements
    (environment,) = jobs("serverless")["quality"]["environments"]
    assert environment["spec"]["dependencies"] == ["../../../dist/*.whl", *requirements]


def test_each_cloud_has_own_machines_and_matching_runtime() -> None:
    """The runtime carries the Spark version that the wheel requires."""
    kinds = {}
    for target in PRODUCTION:
        clusters = [
            job_cluster["new_cluster"]
            for job in jobs(target).values()
            for job_cluster in job.get("job_clusters", [])
        ]
        kinds[target] = {cluster["node_type_id"] for cluster in clusters}
        assert {cluster["spark_version"] for cluster in clusters} == {"18.x-scala2.13"}
        assert {cluster["data_security_mode"] for cluster in clusters} == {"SINGLE_USER"}
    assert (
        not (kinds["aws"] & kinds["azure"]) | (kinds["aws"] & kinds["gcp"]) | (kinds["azure"] & kinds["gcp"])
    )
    assert PROJECT["optional-dependencies"]["spark"][0].startswith("pyspark>=4.1")


def test_only_production_names_runner_and_managers() -> None:
    for target in PRODUCTION:
        definition = bundle.for_target(BUNDLE, target, GIVEN)
        assert definition["mode"] == "production"
        assert definition["run_as"] == {"service_principal_name": "0000-1111"}
        assert definition["permissions"] == [{"level": "CAN_MANAGE", "group_name": "admins"}]
        assert definition["workspace"]["root_path"] == f"/Workspace/Shared/.bundle/deltasmelt/{target}"
        for schema in ("silver", "gold"):
            assert {grant["principal"] for grant in definition["resources"]["schemas"][schema]["grants"]} == {
                "0000-1111",
                "account users",
            }
        assert definition["resources"]["schemas"]["deltasmelt"]["name"] == "deltasmelt"
        assert definition["resources"]["schemas"]["deltasmelt"]["grants"] == [
            {"principal": "0000-1111", "privileges": ["USE_SCHEMA", "READ_VOLUME", "WRITE_VOLUME"]}
        ]
        with pytest.raises(LookupError, match="run_as"):
            bundle.for_target(BUNDLE, target, {key: value for key, value in GIVEN.items() if key != "run_as"})
    dev = bundle.for_target(BUNDLE, "dev")
    assert not {"run_as", "permissions", "mode"} & set(dev)
    for job in dev["resources"]["jobs"].values():
        assert (job.get("continuous") or job["schedule"])["pause_status"] == "PAUSED"
    assert dev["resources"]["volumes"]["config"]["schema_name"] == "deltasmelt_dev"


def test_bundle_holds_no_secret_and_serverless_no_variables() -> None:
    for target in (*PRODUCTION, "dev"):
        for path, text in bundle.texts(of(target)):
            if "SMELT_DSN" in path:
                assert text == "{{secrets/deltasmelt/SMELT_DSN}}"
    assert "spark_env_vars" not in (BUNDLE / "resources" / "serverless.yml").read_text()


def test_used_and_declared_variables_are_equal() -> None:
    read = "".join(path.read_text() for path in bundle.files_of(BUNDLE))
    assert set(re.findall(r"\$\{var\.(\w+)\}", read)) == set(bundle.whole(BUNDLE)["variables"])
    assert [name for name, target in bundle.whole(BUNDLE)["targets"].items() if target.get("default")] == [
        "dev"
    ]


def test_auto_cdc_tables_are_declared_with_event_columns() -> None:
    tree = ast.parse((BUNDLE / "auto_cdc" / "tables.py").read_text())
    calls = {ast.unparse(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    flow = {keyword.arg: ast.unparse(keyword.value) for keyword in calls["dp.create_auto_cdc_flow"].keywords}
    assert flow == {
        "target": "table.name",
        "source": "events",
        "keys": "list(table.keys)",
        "sequence_by": "expr(SEQUENCE)",
        "apply_as_deletes": "expr(\"_op = 'delete'\")",
        "except_column_list": "list(META)",
        "stored_as_scd_type": "1",
    }
    assert {"dp.temporary_view", "dp.expect_or_fail", "dp.create_streaming_table"} <= set(calls)
    declared = bundle.load(BUNDLE / "auto_cdc" / "pipeline.yml")["resources"]["pipelines"]["auto_cdc"]
    assert Pipeline.from_dict(declared).as_dict()
    assert (BUNDLE / "auto_cdc" / declared["libraries"][0]["file"]["path"]).is_file()
    read = (BUNDLE / "auto_cdc" / "tables.py").read_text()
    assert set(declared["configuration"]) == set(re.findall(r'conf\.get\("([\w.]+)"\)', read))
