"""A deployment with some of its values replaced."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inferway.deployment.deployment import Deployment
from inferway.deployment.load import build
from inferway.deployment.setting import set_all, setting

__all__ = ["changed"]


def changed(
    deployment: Deployment, values: Mapping[str, Any], node: str | None = None
) -> Deployment:
    """Set values by key, as `inferway.deployment.setting` has them; None leaves a key alone.

    Service times that were measured since the file was read are kept.

    Raises
    ------
    SettingError, DeploymentError
        Where a key or value makes no sense, or the result is no deployment.
    ValueError
        For a deployment that was not read, but put together by hand.
    """
    settings = {key: setting(value) for key, value in values.items() if value is not None}
    if not settings:
        return deployment
    if deployment.source is None:
        raise ValueError("only a deployment from `inferway.load` can be changed")
    source = replace(deployment.source, data=copy.deepcopy(deployment.source.data), problems=[])
    set_all(source.data, settings, node)
    return _as_measured(build(source), deployment)


def _as_measured(deployment: Deployment, before: Deployment) -> Deployment:
    """Give variants without service times those that were measured before."""
    tasks = {}
    for name, task in deployment.tasks.items():
        known = before.tasks[name].variants if name in before.tasks else {}
        variants = {
            key: replace(variant, service=known[key].service)
            if not variant.service and key in known
            else variant
            for key, variant in task.variants.items()
        }
        tasks[name] = replace(task, variants=variants)
    return replace(deployment, tasks=tasks)
