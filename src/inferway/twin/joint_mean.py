"""Means over the answers of several tasks that were simulated together."""

from __future__ import annotations

import math
from collections.abc import Mapping

from inferway.dispatch.joint_bounds import JointMean
from inferway.site.fleet import Fleet
from inferway.twin.result import TaskResult


def energy_of(fleet: Fleet, result: TaskResult) -> float:
    """Mean energy of an answer, J, with that of the first one where a second variant was asked."""
    energy = dict(zip(fleet.variants, fleet.energy.tolist(), strict=True))
    used = sum(share * energy[variant] for variant, share in result.shares.items())
    used += sum(one.share * energy[one.first] for one in result.escalated or ())
    return float(used)


def mean_over(
    mean: JointMean, fleets: Mapping[str, Fleet], results: Mapping[str, TaskResult]
) -> float:
    """The mean accuracy, or energy in J, of the answers of its tasks; nan without an answer."""
    answers = {name: results[name].per_second.answers for name in mean.tasks}
    summed = sum(
        of
        * (
            results[name].accuracy.mean
            if mean.energy is None
            else energy_of(fleets[name], results[name])
        )
        for name, of in answers.items()
        if of > 0
    )
    total = sum(answers.values())
    return summed / total if total > 0 else math.nan
