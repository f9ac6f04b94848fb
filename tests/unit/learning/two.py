"""Two tasks that one policy decides for, on servers of their own or on cores that they share."""

from __future__ import annotations

from typing import Any

import inferway
from inferway.learning.control import Control
from inferway.learning.deployed import control_of

VARIANTS = {
    "light": {"accuracy": 0.7, "service": {"mean": "10 ms"}},
    "heavy": {"accuracy": 0.8, "service": {"mean": "40 ms"}},
}
BURSTS = {
    "process": "map",
    "d0": [[-91.0, 1.0], [0.5, -10.5]],
    "d1": [[90.0, 0.0], [0.0, 10.0]],
}


def file(*, shared: bool = False, policy: str = "rl-po", **options: Any) -> dict[str, Any]:
    """The file, whose scheduling policy is of both tasks."""
    node: dict[str, Any] = {"buffer": 8, "late": "serve"}
    node["instances"] = {f"{task}/{name}": 2 for task in "ab" for name in VARIANTS}
    if shared:
        node["devices"] = {"cpu": {"cores": 2}}
    tasks = {
        "a": {"deadline": "300 ms", "variants": VARIANTS},
        "b": {"deadline": "200 ms", "variants": VARIANTS},
    }
    return {
        "tasks": tasks,
        "nodes": {"n": node},
        "workload": {task: {"arrivals": BURSTS} for task in "ab"},
        "scheduling": {
            "policy": policy,
            "checkpoint": "policy.npz",
            "tasks": ["a", "b"],
            **options,
        },
    }


def control(*, shared: bool = False, late: Any = "serve", **options: Any) -> Control:
    """Both tasks under slotted control."""
    return control_of(inferway.load(file(shared=shared, **options)), late=late)
