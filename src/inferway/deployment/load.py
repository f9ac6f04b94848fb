"""Reads a deployment file."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from inferway.deployment.assembly import assemble
from inferway.deployment.complaints import complain
from inferway.deployment.deployment import Deployment
from inferway.deployment.document import Document
from inferway.deployment.error import Place
from inferway.deployment.source import Source, given, read


def load(path: str | os.PathLike[str] | Mapping[str, Any]) -> Deployment:
    """Read and check a deployment file.

    Parameters
    ----------
    path
        A YAML file, as ``docs/reference/deployment-file.md`` describes it; or the same as a
        mapping, whose relative file names start from the current folder.

    Raises
    ------
    DeploymentError
        If anything is wrong with it. All problems are said at once, a line each, as
        ``FILE:LINE: field: sentence``.
    """
    return build(given(path) if isinstance(path, Mapping) else read(Path(path)))


def build(source: Source) -> Deployment:
    """Check a file's data, as it was read or changed since.

    Raises
    ------
    DeploymentError
        As `load`.
    """
    document = _document(source)
    if document is not None:
        deployment = assemble(document, source)
        if not source.problems:
            return replace(deployment, source=source, build=build)
    raise source.refused()


def _document(source: Source) -> Document | None:
    """Validate the data, without the entries that are wrong, so that the others are checked too."""
    context = {"folder": source.folder}
    try:
        return Document.model_validate(source.data, context=context)
    except ValidationError as error:
        places = complain(error, source)
    if source.full:
        return None
    try:
        return Document.model_validate(_without(source.data, places), context=context)
    except ValidationError:
        return None


def _without(data: dict[str, Any], places: list[Place]) -> dict[str, Any]:
    """Copy the data without the entries (a task, a node, a section) that `places` lie in."""
    kept = copy.deepcopy(data)
    for place in places:
        depth = 2 if place[:1] in {("tasks",), ("nodes",), ("workload",)} else 1
        inner: Any = kept
        for step in place[: depth - 1]:
            inner = inner.get(step, {}) if isinstance(inner, dict) else {}
        if len(place) >= depth and isinstance(inner, dict):
            inner.pop(place[depth - 1], None)
        elif place:
            kept.pop(str(place[0]), None)
    return kept
