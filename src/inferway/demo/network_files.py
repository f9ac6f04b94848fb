"""The network demo's deployment files: one for each policy, with this machine's service times."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["FILE", "TASK", "alone", "read_section", "timed", "with_policy"]

FILE: Final = "network.yaml"
TASK: Final = "digits"


def alone(text: str, path: Path) -> Path:
    """Write a file that serves one of the tasks without a network, to measure it."""
    content = _read(text)
    variants = content["tasks"][TASK]["variants"]
    return _write(
        {
            "tasks": {TASK: {"variants": variants}},
            "nodes": {"here": {"instances": {f"{TASK}/{name}": 1 for name in variants}}},
            # Every request names the variant that it is for.
            "dispatch": {"policy": "fastest-only"},
        },
        path,
    )


def timed(text: str, service_s: Mapping[str, float], path: Path) -> Path:
    """Write the file with these service times, in seconds by variant."""
    content = _read(text)
    for name, variant in content["tasks"][TASK]["variants"].items():
        variant["service"] = {"mean": f"{service_s[name]:.9f} s"}
    return _write(content, path)


def with_policy(
    file: Path,
    policy: str,
    instances: Mapping[str, Any] | None,
    path: Path,
) -> Path:
    """Write the file for a placement policy.

    Parameters
    ----------
    file
        What `timed` wrote.
    policy
        Its name.
    instances
        The section `nodes` that the policy leads to, where it is one that knows the requests
        beforehand: nodes then run just that, as they cannot know how long they will be asked.
        None where nodes are to decide.
    path
        Where to write.
    """
    content = _read(file.read_text(encoding="utf-8"))
    if instances is None:
        content["placement"]["policy"] = policy
    else:
        del content["placement"]
        content["nodes"] = instances
    return _write(content, path)


def read_section(text: str, name: str) -> Any:
    """Read one section of a file's text."""
    return _read(text)[name]


def _read(text: str) -> dict[str, Any]:
    from ruamel.yaml import YAML

    found: dict[str, Any] = YAML(typ="safe").load(text)
    return found


def _write(content: Mapping[str, Any] | Sequence[Any], path: Path) -> Path:
    from ruamel.yaml import YAML

    written = io.StringIO()
    YAML(typ="safe").dump(content, written)
    path.write_text(written.getvalue(), encoding="utf-8")
    return path
