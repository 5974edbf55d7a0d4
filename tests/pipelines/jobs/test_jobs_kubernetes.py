"""The manifests: Kubernetes' own schemas accept them, and all called commands and mounted objects exist."""

from __future__ import annotations

import copy
import functools
import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from psycopg.conninfo import conninfo_to_dict
from ruamel.yaml import YAML

from deltasmelt.bronze.config.sections import parse_size
from deltasmelt.gold.language.document import load_documents
from deltasmelt.pipelines.private import conf_folder
from deltasmelt.pipelines.runtime import reader_supervision
from deltasmelt.pipelines.settings import load_pipeline
from tests.pipelines.jobs.command_lines import parsed, probed

FOLDER = conf_folder() / "kubernetes"
VERSION = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]["version"]
OLDEST, NEWEST = "1.30", "1.37"
KINDS = {
    "CronJob",
    "Deployment",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Service",
    "ServiceAccount",
}
KUSTOMIZED = YAML(typ="safe", pure=True).load((FOLDER / "kustomization.yml").read_text())
(CONFIG,) = KUSTOMIZED["configMapGenerator"]
FILES = {Path(name).name: (FOLDER / name).read_text() for name in CONFIG["files"]}
LEASE_SECONDS = 75.0
"""Seconds for which a killed reader's lease may delay the next reader; see docs/object-stores.md."""


@functools.cache
def _read() -> list[dict[str, Any]]:
    yaml = YAML(typ="safe", pure=True)
    return [
        document
        for name in KUSTOMIZED["resources"]
        for document in yaml.load_all((FOLDER / name).read_text())
    ]


def objects() -> list[dict[str, Any]]:
    """Return copies of all objects, which a test may change."""
    return copy.deepcopy(_read())


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [item for item in objects() if item["kind"] == kind]


def pods() -> dict[str, dict[str, Any]]:
    """Return the specification of each pod, with its labels."""
    templates = {
        deployment["metadata"]["name"]: deployment["spec"]["template"] for deployment in of_kind("Deployment")
    }
    for cron_job in of_kind("CronJob"):
        templates[cron_job["metadata"]["name"]] = cron_job["spec"]["jobTemplate"]["spec"]["template"]
    return templates


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["spec"]["containers"]
    return dict(only)


READER = pods()["deltasmelt-reader"]
named = pytest.mark.parametrize("pod", pods().values(), ids=pods())


def number(value: object) -> int:
    assert isinstance(value, int)
    return value


def refusal(one: dict[str, Any], version: str = NEWEST) -> str | None:
    try:
        kubernetes_validate.validate(one, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error.message)
    return None


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_accepts_each_object(version: str) -> None:
    assert {item["kind"] for item in objects()} == KINDS
    assert [refusal(item, version) for item in objects()] == [None] * len(objects())


def test_schemas_reject_misspelt_field_at_any_depth() -> None:
    (deployment,) = of_kind("Deployment")
    container(deployment["spec"]["template"])["livenessProbe"]["periodSecond"] = 5
    assert "periodSecond" in (refusal(deployment) or "")


@named
def test_each_container_calls_command_available_in_image(pod: dict[str, Any]) -> None:
    definition = container(pod)
    command, params = parsed(definition["args"])
    assert str(params["file"]) == "/etc/smelt/pipeline.yml"
    image = "reader" if command == "bronze" else "stages"
    assert definition["image"] == f"registry.example.com/deltasmelt-{image}:{VERSION}"
    dockerfile = (FOLDER.parent / "docker" / "Dockerfile").read_text()
    assert re.search(rf"^FROM \w+ AS {image}$", dockerfile, re.MULTILINE)
    assert f"USER {pod['spec']['securityContext']['runAsUser']}:" in dockerfile
    assert "command" not in definition, "the image's own"


def test_probes_query_reader_address_with_token() -> None:
    definition = container(READER)
    _, params = parsed(definition["args"])
    paths = {}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        address = probed(definition[name]["exec"]["command"])
        paths[name] = address.path
        assert address.http_token_file == params["http_token_file"]
        assert params["http"] == f"0.0.0.0:{address.http.port}"
        assert address.seconds < definition[name]["timeoutSeconds"]
    assert paths == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    (port,) = definition["ports"]
    assert params["http"].endswith(f":{port['containerPort']}")


def test_the_probes_wait_for_what_ends_by_itself() -> None:
    def budget(name: str) -> float:
        probe = container(READER)[name]
        return float(probe["periodSeconds"] * probe["failureThreshold"])

    restart_seconds = reader_supervision._SILENT_ENDS * reader_supervision._LONGEST_PAUSE
    assert budget("startupProbe") > 2 * LEASE_SECONDS
    assert budget("livenessProbe") > restart_seconds


def test_single_reader_is_selected_exclusively() -> None:
    (deployment,), (budget,), (service,) = map(of_kind, ("Deployment", "PodDisruptionBudget", "Service"))
    (policy,) = of_kind("NetworkPolicy")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    for selector in (
        deployment["spec"]["selector"]["matchLabels"],
        budget["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        policy["spec"]["podSelector"]["matchLabels"],
    ):
        chosen = [
            name for name, pod in pods().items() if selector.items() <= pod["metadata"]["labels"].items()
        ]
        assert chosen == ["deltasmelt-reader"]
    port = container(READER)["ports"][0]["name"]
    assert service["spec"]["ports"][0]["targetPort"] == port
    assert [port_rule["port"] for port_rule in policy["spec"]["ingress"][0]["ports"]] == [port]


@named
def test_each_pod_meets_restricted_standard_with_readonly_root(pod: dict[str, Any]) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted."""
    whole, of_container = pod["spec"]["securityContext"], container(pod)["securityContext"]
    assert whole["runAsNonRoot"] is True
    assert whole["runAsUser"] > 0
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert of_container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["spec"]["automountServiceAccountToken"] is False
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    mounts = {mount["name"]: mount for mount in container(pod)["volumeMounts"]}
    assert set(mounts) == set(volumes)
    writable = {mount["mountPath"] for mount in mounts.values() if not mount.get("readOnly")}
    assert writable == {"/var/log/smelt", "/tmp"}
    assert {name for name in volumes if "emptyDir" in volumes[name]} == {"logs", "tmp"}


@named
def test_what_a_pod_takes_is_there(pod: dict[str, Any]) -> None:
    (account,) = of_kind("ServiceAccount")
    assert pod["spec"]["serviceAccountName"] == account["metadata"]["name"]
    text = (FOLDER / "reader.yml").read_text()
    match = re.search(r"kubectl create secret generic (\S+) (.*?)kubectl", text, re.DOTALL)
    assert match is not None
    keys = set(re.findall(r"--from-(?:literal=([\w-]+)=|file=([\w.-]+))", match[2]))
    keys = {key for pair in keys for key in pair if key}
    secret_keys = {variable["valueFrom"]["secretKeyRef"]["key"] for variable in container(pod)["env"]}
    for volume in pod["spec"]["volumes"]:
        if "secret" in volume:
            assert volume["secret"]["secretName"] == match[1]
            secret_keys |= {item["key"] for item in volume["secret"]["items"]}
        if "configMap" in volume:
            assert volume["configMap"] == {"name": CONFIG["name"]}
    assert not any("subPath" in mount for mount in container(pod)["volumeMounts"])
    assert secret_keys <= keys
    assert {variable["valueFrom"]["secretKeyRef"]["name"] for variable in container(pod)["env"]} == {match[1]}
    variables = {variable["name"] for variable in container(pod)["env"]}
    assert set(re.findall(r"\$\{(\w+)\}", FILES["pipeline.yml"])) == variables


def test_authority_named_in_connection_string_is_mounted() -> None:
    text = (FOLDER / "reader.yml").read_text()
    match = re.search(r"dsn='(\S+)'", text)
    assert match is not None
    parameters = conninfo_to_dict(match[1])
    (mount,) = (candidate for candidate in container(READER)["volumeMounts"] if candidate["name"] == "secret")
    (volume,) = (candidate for candidate in READER["spec"]["volumes"] if candidate["name"] == "secret")
    files = {f"{mount['mountPath']}/{item['path']}" for item in volume["secret"]["items"]}
    assert parameters["sslmode"] == "verify-full"
    assert parameters["sslrootcert"] in files
    assert match[0] in (conf_folder().parent / "docs/how-to/kubernetes.md").read_text()


def test_config_map_files_fit_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are laid out as in a pod: links to links, so that all files change at once."""
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..data").symlink_to("..2026")
    for name, text in FILES.items():
        assert re.fullmatch(r"[-._a-zA-Z0-9]+", name)
        (tmp_path / "..data" / name).write_text(text)
        (tmp_path / name).symlink_to(f"..data/{name}")
    monkeypatch.setenv("SMELT_DSN", "postgresql://smelt@db.example.com/shop")
    pipeline = load_pipeline(tmp_path / "pipeline.yml")
    assert pipeline.lake_address().is_remote, "a pod keeps nothing"
    assert {file.name for file in pipeline.document_files()} == set(FILES) - {"pipeline.yml"}
    assert [document.name for document in load_documents(pipeline.document_files())] == ["customer"]
    heap = number(parse_size(pipeline.spark["spark.driver.memory"].replace("g", "GiB")))
    for name in set(pods()) - {"deltasmelt-reader"}:
        requested = number(parse_size(container(pods()[name])["resources"]["requests"]["memory"] + "B"))
        assert requested >= heap + 2**30


def test_stages_run_singly_and_failures_wait_for_schedule() -> None:
    commands = {}
    for job in of_kind("CronJob"):
        spec, inner = job["spec"], job["spec"]["jobTemplate"]["spec"]
        assert spec["concurrencyPolicy"] == "Forbid"
        assert inner["backoffLimit"] == 0
        assert inner["activeDeadlineSeconds"] >= 12 * 3600, "of what hangs, or no later run would start"
        assert inner["template"]["spec"]["restartPolicy"] == "Never", "which podFailurePolicy demands"
        command, params = parsed(container(inner["template"])["args"])
        commands[command] = params.get("until_caught_up")
        fields = spec["schedule"].split()
        assert len(fields) == 5
    assert commands == {"silver": True, "gold": True, "maintain": None, "quality": None}
