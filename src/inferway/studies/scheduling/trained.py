"""RL-PO trained with one of our departures from the paper's training taken back, and evaluated."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

AS_TRAINED = "as trained"
PAPER = "the paper's settings"
"""None of the departures."""
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    AS_TRAINED: {},
    "no baseline": {"baseline": None},
    "no shaping": {"potential": "none"},
    "no reward scale": {"scale": False},
    "no symlog": {"symlog": None},
    "no standardizing": {"standardize": False},
    "discount 0.99, trace 0.95": {"discount": 0.99, "trace": 0.95},
    "the paper's rate": {"learning_rate": 2.5e-4, "final_rate": 1.0},
}
"""What is changed of `inferway.learning.settings.TUNED`."""

CODE = (
    *("site", "dispatch", "scheduling", "twin", "workload", "learning"),
    *("studies/scheduling/burst.py", "studies/scheduling/batch_curve.py"),
    "studies/scheduling/gains.py",
)
"""What the results of `trained` depend on."""


def trained(
    variant: str, slots: int, slots_per_update: int, evaluated: int, seed: int
) -> dict[str, Any]:
    """Train RL-PO with a variant's settings and evaluate it without noise.

    Parameters
    ----------
    variant
        One of `VARIANTS`, or `PAPER`.
    slots, slots_per_update
        As of `inferway.learning.settings.Settings`; a rate that falls does so within them.
    evaluated
        Slots without noise.
    seed
        Of training and evaluation.

    Returns
    -------
    dict
        Goodput, violations and heavy share, overall and by state, and CPU time, s.
    """
    from inferway.learning.settings import TUNED
    from inferway.learning.settings import Settings as Learning
    from inferway.learning.training import train
    from inferway.studies.scheduling.burst import BURSTY, NORMAL, control

    wanted = Learning() if variant == PAPER else replace(TUNED, **VARIANTS[variant])
    wanted = replace(wanted, slots=slots, slots_per_update=slots_per_update)
    with tempfile.TemporaryDirectory() as folder:
        found = train(
            control("rl-po"),
            wanted,
            Path(folder),
            seed=seed,
            tensorboard=False,
            evaluation_slots=evaluated,
            checkpoint_every_s=math.inf,
        )
    tally = found.tally
    return {
        "goodput": tally.overall_goodput,
        "violations": tally.overall_violations,
        "goodput_bursty": float(tally.goodput[BURSTY]),
        "goodput_normal": float(tally.goodput[NORMAL]),
        "heavy_bursty": float(tally.heavy[BURSTY]),
        "heavy_normal": float(tally.heavy[NORMAL]),
        "cpu_s": found.cpu_s,
    }
