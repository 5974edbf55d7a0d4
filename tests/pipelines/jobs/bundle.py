"""A Databricks bundle as the CLI assembles it: included files, one target, substituted variables.

Written from the documentation of bundles: https://docs.databricks.com/aws/en/dev-tools/bundles/settings
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ruamel.yaml import YAML

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_REFERENCE: Final = re.compile(r"\$\{([\w.]+)\}")


def load(path: Path) -> Any:
    """Read a YAML file with anchors."""
    return YAML(typ="safe", pure=True).load(path.read_text())


def files_of(folder: Path) -> list[Path]:
    """Return the bundle's own file, then its included files."""
    bundle_file = folder / "databricks.yml"
    return [
        bundle_file,
        *(path for pattern in load(bundle_file)["include"] for path in sorted(folder.glob(pattern))),
    ]


def merged(base: Any, override: Any) -> Any:
    """Merge two parts of a bundle: mappings by key, lists by concatenation, else the second part wins."""
    if isinstance(base, dict) and isinstance(override, dict):
        return base | {
            key: merged(base[key], value) if key in base else value for key, value in override.items()
        }
    return [*base, *override] if isinstance(base, list) and isinstance(override, list) else override


def whole(folder: Path) -> dict[str, Any]:
    """Return the bundle with all its files, before the choice of a target."""
    bundle: dict[str, Any] = {}
    for path in files_of(folder):
        bundle = merged(bundle, load(path))
    return bundle


def targets_of(folder: Path) -> list[str]:
    """Return the names of the targets."""
    return list(whole(folder)["targets"])


def as_written(folder: Path, name: str) -> dict[str, Any]:
    """Return the resources of one target, with unresolved references."""
    bundle = whole(folder)
    resources: dict[str, Any] = merged(bundle["resources"], bundle["targets"][name].get("resources", {}))
    return resources


def for_target(folder: Path, name: str, variables: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the content that a target deploys.

    Args:
        folder: parent folder of the bundle's own file.
        variables: values of variables, as passed by ``--var``.

    Raises:
        LookupError: a variable has no value, or a reference has no object.
    """
    bundle = whole(folder)
    target = dict(bundle.pop("targets")[name])
    values = {
        key: variable["default"] for key, variable in bundle["variables"].items() if "default" in variable
    }
    values |= target.pop("variables", {}) | dict(variables or {})
    settings: dict[str, Any] = merged(
        {key: value for key, value in bundle.items() if key != "variables"}, target
    )
    scope = {
        "bundle": {**bundle["bundle"], "target": name},
        "workspace": {"current_user": {"userName": "somebody@example.com"}, "file_path": "/Workspace/files"},
        "resources": settings["resources"],
        "var": values,
    }
    return {key: _resolved(value, scope) for key, value in settings.items()}


def texts(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Return every text with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from texts(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from texts(item, (*path, index))
    elif isinstance(value, str):
        yield path, value


def _resolved(value: Any, known: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _resolved(item, known) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, known) for item in value]
    if not isinstance(value, str):
        return value
    if (alone := _REFERENCE.fullmatch(value)) is not None:
        return _resolved(_at(alone[1], known), known)
    return _REFERENCE.sub(lambda match: str(_resolved(_at(match[1], known), known)), value)


def _at(reference: str, known: Mapping[str, Any]) -> Any:
    value: Any = known
    for step in reference.split("."):
        if step not in value:
            raise LookupError(f"${{{reference}}}")
        value = value[step]
    return value
