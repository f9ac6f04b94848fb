"""In which module each study is, by its name. They are imported when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from inferway.experiments.study import Study
from inferway.spelling import closest

STUDIES = {
    "trade-off": "queueing.examples",
    "r-jiq-limit": "queueing.r_jiq",
    "r-jsq": "queueing.r_jsq",
    "wrong-rate": "queueing.rate",
    "rate-window": "queueing.rate",
    "small-site": "queueing.load_curve",
    "large-site": "queueing.load_curve",
    "deterministic-site": "queueing.load_curve",
    "varying-load": "queueing.varying",
    "varying-target": "queueing.varying",
    "underestimate": "queueing.examples",
    "wrong-pair": "queueing.examples",
    "shuffle-pair": "queueing.examples",
    "blocking": "queueing.r_jiq",
    "ablation": "queueing.examples",
    "batch-times": "queueing.batch_times",
    "rerouting": "queueing.rerouting",
    "small-optimum": "queueing.priced",
    "energy": "queueing.priced",
    "priced-limits": "queueing.priced",
    "promise": "queueing.promise",
    "batches": "queueing.batches",
    "escalation": "queueing.escalation",
    "drift": "queueing.drift",
    "device-pool": "queueing.device_pool",
    "catalog": "placement.inputs",
    "upstream": "placement.inputs",
    "popularity": "placement.inputs",
    "placement-tiers": "placement.tiers",
    "placement-alpha": "placement.gain",
    "placement-gain": "placement.gain",
    "refresh-period": "placement.refresh_period",
    "request-rate": "placement.gain",
    "latency-inaccuracy": "placement.gain",
    "edge-tiers": "placement.tiers",
    "edge-alpha": "placement.gain",
    "edge-rate": "placement.gain",
    "moved-bytes": "placement.refresh_period",
    "learning-rate": "placement.long_runs",
    "real-topologies": "placement.real_topologies",
    "milp-gap": "placement.long_runs",
    "exchange": "placement.exchange",
    "waiting": "placement.waiting",
    "regret": "placement.regret",
    "table-2": "scheduling.table_2",
    "learning-curves": "scheduling.learning_curves",
    "deadlines": "scheduling.deadlines",
    "batch-sizes": "scheduling.batch_sizes",
    "batch-course": "scheduling.batch_course",
    "phase-estimate": "scheduling.phase_estimate",
    "routing-cost": "scheduling.routing_cost",
    "deadline-bound": "scheduling.deadlines",
    "burst-batches": "scheduling.burst_batches",
    "burst-training": "scheduling.burst_training",
    "changing-instances": "scheduling.changing",
    "several-tasks": "scheduling.several_tasks",
    "training-tricks": "scheduling.training_tricks",
}
"""Dispatch, placement, scheduling; in each part the papers come first and ours last."""


def study(name: str) -> Study[Any]:
    """A study by its name; ValueError for an unknown one."""
    if name not in STUDIES:
        near = closest(name, STUDIES)
        meant = f"did you mean {near}?" if near else f"expected one of {', '.join(STUDIES)}"
        raise ValueError(f"unknown study {name!r}: {meant}")
    module = importlib.import_module(f"inferway.studies.{STUDIES[name]}")
    every = (one for one in vars(module).values() if isinstance(one, Study))
    return next(one for one in every if one.name == name)


def named(names: Sequence[str] = ()) -> list[Study[Any]]:
    """Studies by their names, each once; all of them where none is named."""
    return [study(name) for name in dict.fromkeys(names or STUDIES)]
