"""`smelt init --databricks`: write a bundle for running a pipeline on Databricks.

The command reads the pipeline file and writes files alone; no source, lake or workspace is contacted. So the
command works without the file's secrets: variables stay as written.
"""

from __future__ import annotations

import os
import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from deltasmelt.bronze.config.yaml_file import YamlFile, read_yaml
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.figures import counted
from deltasmelt.bronze.lake.place import Location
from deltasmelt.pipelines.init.bundle import (
    OF_SCHEME,
    BundleChoices,
    Cloud,
    bundle_files,
    bundle_name,
    variables_in,
    without_variables,
)
from deltasmelt.pipelines.init.file import pipeline_name
from deltasmelt.pipelines.init.new_files import write_new
from deltasmelt.pipelines.private import conf_folder
from deltasmelt.pipelines.settings import WILDCARDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltasmelt.pipelines.terminal.output import Output


def run_init_databricks(
    output: Output, *, file: Path, out: Path | None, cloud: Cloud | None = None, catalog: str | None = None
) -> None:
    """Write the bundle and print the next steps.

    Args:
        out: the bundle's folder; default: `databricks` beside the pipeline file.
        cloud: cloud of the workspace; default: the cloud of the lake's URL.
        catalog: catalog in Unity Catalog; default: `lake.catalog`, else `main`.

    Raises:
        SmeltError: the pipeline file is missing or invalid YAML, its lake is a local folder, the cloud is
            unknown, or a file exists already.
    """
    yaml = read_yaml(file)
    choices = _choices(yaml, cloud=cloud, catalog=catalog)
    folder = file.parent / "databricks" if out is None else out
    source = conf_folder() / "databricks"
    sources = {
        path.relative_to(source).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(source.rglob("*"))
        if path.suffix in {".py", ".yml"}
    }
    files = bundle_files(sources, choices)
    last = files.pop("databricks.yml")  # written last, because it names the other files
    write_new({**{folder / path: text for path, text in files.items()}, folder / "databricks.yml": last})
    output.line(
        f"wrote {folder}: a bundle for the pipeline {choices.name} on {choices.cloud}, "
        f"catalog {choices.catalog}, {counted(len(files) + 1, 'file')}"
    )
    _print_next_steps(output, yaml, folder, choices)


def _choices(yaml: YamlFile, *, cloud: Cloud | None, catalog: str | None) -> BundleChoices:
    path, catalog_text = _text(yaml, "lake", "path"), _text(yaml, "lake", "catalog")
    lake = None if path is None else without_variables(path)
    if lake is not None and Location(lake).folder is not None:
        raise ConfigurationError(
            f"lake.path is a folder, {lake}; the disk of a cluster is removed with the cluster",
            code="databricks-lake",
            where=yaml.where(("lake", "path")),
            remedy="set the URL of an object store: s3://, abfss:// or gs://",
        )
    if path is None and catalog_text is not None:
        raise ConfigurationError(
            "the lake has no lake.path; in a job, the reader has no Spark session for the tables of a "
            "catalog",
            code="databricks-lake",
            where=yaml.where(("lake",)),
            remedy="set the URL of an external location (s3://, abfss://, gs://); lake.catalog names tables",
        )
    chosen = cloud or OF_SCHEME.get((lake or path or "").partition("://")[0].lower())
    if chosen is None:
        raise ConfigurationError(
            "lake.path does not show the cloud of the workspace",
            code="databricks-cloud",
            where=yaml.where(("lake", "path")),
            remedy="add --cloud aws, --cloud azure or --cloud gcp",
        )
    name = without_variables(_text(yaml, "pipeline") or "") or yaml.path.stem
    return BundleChoices(
        name=bundle_name(pipeline_name(name)),
        cloud=chosen,
        catalog=catalog or (None if catalog_text is None else without_variables(catalog_text)) or "main",
        lake=None if lake is None else lake.rstrip("/"),
        file=yaml.path.name,
        variables=tuple(
            dict.fromkeys(variable for text in _texts(yaml.data) for variable in variables_in(text))
        ),
    )


def _text(yaml: YamlFile, *keys: str) -> str | None:
    """Return the text at a key; None for no text."""
    value: Any = yaml.data
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _print_next_steps(output: Output, yaml: YamlFile, folder: Path, choices: BundleChoices) -> None:
    scope, volume = choices.name, f"dbfs:/Volumes/{choices.catalog}/{choices.schema}/config"
    dist = shlex.quote(f"{folder}{os.sep}dist{os.sep}")
    output.line("next:")
    output.line(f"  mkdir {dist} && cp deltasmelt-*.whl {dist}    # the wheel that the tasks run")
    if choices.variables:
        output.line(f"  databricks secrets create-scope {scope}")
    for name in choices.variables:
        output.line(f"  databricks secrets put-secret {scope} {name}    # the pipeline file's ${{{name}}}")
    if choices.variables:
        output.line(f"  databricks secrets put-acl {scope} $PRINCIPAL READ    # an application ID")
    options = "" if choices.lake is not None else " --var lake=…"
    output.line(
        f"  (cd {shlex.quote(str(folder))} && databricks bundle deploy -t {choices.cloud} "
        f"--var run_as=$PRINCIPAL --var warehouse_id=…{options})"
    )
    output.line(
        f"  databricks fs cp {shlex.quote(str(yaml.path))} {shlex.quote(f'{volume}/{yaml.path.name}')}"
    )
    for path, is_folder in _near_files(yaml):
        copy = "cp -r" if is_folder else "cp"
        output.line(f"  databricks fs {copy} {shlex.quote(str(path))} {shlex.quote(f'{volume}/{path.name}')}")
    for key, pattern in _patterns(yaml):
        if not _is_beside(pattern):
            output.line(
                f"not copied: {pattern} of {key}; put the file next to the pipeline file, and use its name "
                "there"
            )
    output.line(
        "the reader starts at the deployment and retries until the pipeline file exists; what each target "
        "runs: docs/how-to/databricks.md"
    )
    if choices.variables:
        output.line(
            f"for -t serverless write ${{secret:{scope}/{choices.variables[0]}}} instead of "
            f"${{{choices.variables[0]}}} in the pipeline file: serverless jobs have no such variables"
        )


def _patterns(yaml: YamlFile) -> Iterator[tuple[str, str]]:
    """Return the keys of documents and suites, each with one of its patterns."""
    for section, key in (("gold", "documents"), ("quality", "suites")):
        data = yaml.data.get(section) if isinstance(yaml.data, dict) else None
        patterns = data.get(key) if isinstance(data, dict) else None
        for pattern in patterns if isinstance(patterns, list) else []:
            yield f"{section}.{key}", str(pattern)


def _is_beside(pattern: str) -> bool:
    """Check whether a pattern selects files in the pipeline file's folder or below. Pure."""
    path = PurePath(pattern)
    local = not any(variables_in(pattern)) and not pattern.startswith("~")
    return local and not path.is_absolute() and ".." not in path.parts


def _near_files(yaml: YamlFile) -> list[tuple[Path, bool]]:
    """Return documents and suites in the pipeline file's folder: files, and folders marked True."""
    folder = yaml.path.parent
    entries: dict[Path, bool] = {}
    for _, pattern in _patterns(yaml):
        parts = PurePath(without_variables(pattern) or pattern).parts
        if not parts or not _is_beside(pattern):
            continue
        # A named file counts also before its creation; a wildcard counts with its present matches.
        if not WILDCARDS & set(parts[0]):
            entries[folder / parts[0]] = len(parts) > 1
            continue
        for match in sorted(folder.glob(str(PurePath(*parts)))):
            top = folder / match.relative_to(folder).parts[0]
            entries[top] = top.is_dir()
    entries.pop(yaml.path, None)
    return list(entries.items())
