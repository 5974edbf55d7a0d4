"""The Databricks bundle of one pipeline, as text: `conf/databricks` with the pipeline's own names. Pure.

Tests compare the written bundle with Databricks' models. The bundle differs from the source in values alone,
and in the parts tied to a checkout: the wheel is not built and lies in `dist`. A missing replaced text is an
error of deltasmelt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from deltasmelt.gold.drafting.files import scalar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Cloud: TypeAlias = Literal["aws", "azure", "gcp"]
CLOUDS: Final[tuple[Cloud, ...]] = get_args(Cloud)
OF_SCHEME: Final[dict[str, Cloud]] = {
    "s3": "aws", "s3a": "aws", "abfs": "azure", "abfss": "azure", "az": "azure", "gs": "gcp",
}  # fmt: skip
"""Cloud of a store's URL scheme. Servers with S3's protocol run anywhere; their users name the cloud."""

_VARIABLE: Final = re.compile(r"\$(?:(\$)\{|\{(\w+)(:-[^}]*)?\})", re.ASCII)
_CHECKOUT_WHEEL: Final = "../../../dist/"
_HEADER: Final = """\
# Written by `smelt init --databricks`: a Databricks bundle that runs the pipeline {name}.
# docs/how-to/databricks.md describes it. The wheel of deltasmelt belongs into dist/.
"""


@dataclass(frozen=True, slots=True)
class BundleChoices:
    """The particulars of a pipeline."""

    # name of the bundle; letters, digits, `_` and `-`
    name: str
    # cloud of the clusters' machines, unless a target names another cloud
    cloud: Cloud
    catalog: str
    # URL of the lake; None if unknown before a task runs
    lake: str | None
    file: str
    # environment variables of the file; each is a secret with the same name
    variables: tuple[str, ...] = ()

    @property
    def schema(self) -> str:
        """Schema of the volumes."""
        return "smelt_" + self.name.lower().replace("-", "_")


def bundle_name(pipeline: str) -> str:
    """Return a pipeline's name in a form valid for a bundle."""
    return pipeline.replace(".", "_")


def variables_in(text: str) -> Iterator[str]:
    """Return the environment variables in a text of a pipeline file."""
    for escaped, name, default in _VARIABLE.findall(text):
        if not escaped and not default:
            yield name


def without_variables(text: str) -> str | None:
    """Return a text of a pipeline file with its defaults inserted; None if the text needs a variable."""
    if any(variables_in(text)):
        return None
    return _VARIABLE.sub(lambda match: "${" if match[1] else match[3].removeprefix(":-"), text)


def bundle_files(sources: Mapping[str, str], choices: BundleChoices) -> dict[str, str]:
    """Return the bundle's files by their path.

    Raises:
        LookupError: a source lacks a text to be replaced.
    """
    texts = {path: _resource(text, choices) for path, text in sources.items()}
    texts["databricks.yml"] = _settings(sources["databricks.yml"], choices)
    return texts


def _resource(text: str, choices: BundleChoices) -> str:
    text = text.replace(_CHECKOUT_WHEEL, "../dist/")
    if choices.lake is not None:
        text = text.replace("s3://bucket/lake", choices.lake.replace("\\", "\\\\").replace('"', '\\"'))
    block = re.compile(r"^( +)spark_env_vars:\n +SMELT_DSN: .*\n", re.MULTILINE)
    return block.sub(lambda match: _environment(match[1], choices), text)


def _environment(margin: str, choices: BundleChoices) -> str:
    lines = [
        f'{margin}  {name}: "{{{{secrets/${{var.secret_scope}}/{name}}}}}"\n' for name in choices.variables
    ]
    return f"{margin}spark_env_vars:\n{''.join(lines)}" if lines else ""


def _settings(text: str, choices: BundleChoices) -> str:
    text = _HEADER.format(name=choices.name) + text[text.index("bundle:\n") :]
    text = _replaced(text, r"^  name: deltasmelt$", f"  name: {choices.name}")
    text = _replaced(text, r"^artifacts:\n(?: .*\n)+\n", "")
    text = _replaced(text, r"^      schema: deltasmelt_dev$", f"      schema: {choices.schema}_dev")
    machines = {
        name: _default(text, name, choices.cloud) for name in ("reader_node_type", "stages_node_type")
    }
    defaults = {
        "catalog": choices.catalog,
        "schema": choices.schema,
        "pipeline_file": choices.file,
        "secret_scope": choices.name,
        **machines,
    }
    for name, value in defaults.items():
        text = _replaced(
            text, rf"(^  {name}:\n    description: .*\n    default: ).*$", rf"\g<1>{_written(value)}"
        )
    if choices.lake is not None:
        value = _written(choices.lake)
        text = _replaced(text, r"(^  lake:\n    description: .*\n)", rf"\g<1>    default: {value}\n")
    for name, value in machines.items():
        text = _replaced(text, rf"(^  serverless:\n(?:    .*\n)+?      {name}: ).*$", rf"\g<1>{value}")
    return text


def _written(value: str) -> str:
    return scalar(value).replace("\\", "\\\\")


def _default(text: str, name: str, cloud: Cloud) -> str:
    match = re.search(rf"^  {cloud}:.*\n(?:    .*\n)+?      {name}: (.*)$", text, re.MULTILINE)
    if match is None:
        raise LookupError(f"{name} of {cloud}")
    return match[1]


def _replaced(text: str, pattern: str, by: str) -> str:
    changed, count = re.subn(pattern, by, text, flags=re.MULTILINE)
    if count != 1:
        raise LookupError(f"{pattern} occurs {count} times")
    return changed
