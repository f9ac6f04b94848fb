"""What a server would tell of a task and its last requests, made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferway.dashboard.question import ObservedTask
from inferway.live.recent import ROW, Rows, head_of, written
from inferway.live.request import Outcome

TASK = "digits"
CONTENT = {
    "tasks": {
        TASK: {
            "accuracy_target": 0.8,
            "variants": {
                "tiny": {"model": "zoo://digits/tiny"},
                "big": {"model": "zoo://digits/small"},
            },
        }
    },
    "nodes": {"here": {"instances": {f"{TASK}/tiny": 1, f"{TASK}/big": 1}}},
}


SURE = {
    # Of `tiny`'s answers 0.7 are sure, and all right; the others are nearly all wrong.
    "mass": [[0.3, 0.7], [0.0, 0.0]],
    "expected": [[[0.05, 0.85], [0.97857, 0.92143]], [[0.7, 0.9], [0.7, 0.9]]],
    "edges": [[0.5], [None]],
}
"""What confidences of the two classes say, as a server tells it."""


def fleet(**keys: Any) -> dict[str, Any]:
    """Two classes of one server each, 1 ms and 5 ms."""
    common = {"instances": 1, "healthy": 1, "energy": 0.0, "price": 0.0, "batch": None}
    here = {"node": "", "by": ""}
    classes = [
        {"name": "tiny", "variant": "tiny", "accuracy": 0.7, "service_s": 1e-3} | here | common,
        {"name": "big", "variant": "big", "accuracy": 0.9, "service_s": 5e-3} | here | common,
    ]
    usual = {
        "task": TASK, "kind": TASK, "node": "", "target": 0.8, "deadline_s": None, "balance": 0.0,
        "policy": "priced", "told_rate_per_s": None, "buffer": None, "queue": "per-server",
        "late": "drop", "classes": classes, "confidence": None,
    }  # fmt: skip
    return usual | keys


def rows(count: int = 2000, rate_per_s: float = 100.0, seed: int = 1) -> Rows:
    """Requests of which every other one went to `big`, each served as soon as it came."""
    random = np.random.default_rng(seed)
    found: Rows = np.zeros(count, ROW)
    found["received_s"] = 5.0 + np.cumsum(random.exponential(1.0 / rate_per_s, count))
    found["decided_s"] = 1e-4
    found["column"] = found["server"] = np.arange(count) % 2
    found["model_s"] = np.where(found["column"] == 0, 1e-3, 5e-3)
    found["ended_s"] = found["decided_s"] + found["model_s"] + 2e-4
    found["deadline_s"] = np.inf
    found["rows"] = 1
    found["expected"] = np.nan
    found["outcome"] = Outcome.ANSWERED
    return found


def told(kept: Rows | None = None, **keys: Any) -> ObservedTask:
    """All of it, with rows of the usual kind if none are given."""
    some = rows() if kept is None else kept
    body = written(head_of(TASK, ["tiny", "big"], 1000.0, len(some)), some)
    return ObservedTask(CONTENT, fleet(**keys), body)


def joined(
    *, accuracy: float = 0.83, balance: float = 0.0, other: Rows | None = None, **keys: Any
) -> ObservedTask:
    """The task with another one beside it, ``plain``, and a target over both."""
    target = {"tasks": [TASK, "plain"], "accuracy": accuracy}
    content = {
        **CONTENT,
        "tasks": {**CONTENT["tasks"], "plain": {"variants": CONTENT["tasks"][TASK]["variants"]}},
        "targets": {"both": target},
    }
    beside = rows(1000, 50.0, seed=2) if other is None else other
    return ObservedTask(
        content,
        fleet(targets=["both"], **keys),
        told().requests,
        beside=[
            ObservedTask(
                {},
                fleet(task="plain", kind="plain", target=None, balance=None, targets=["both"]),
                written(head_of("plain", ["tiny", "big"], 1000.0, len(beside)), beside),
            )
        ],
        balances={"both": balance},
    )
