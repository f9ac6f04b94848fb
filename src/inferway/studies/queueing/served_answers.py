"""Answers of a server, by the bin of their confidence: what it promised of them, and their labels.

The zoo is served under `escalate`, and sent images of the half of its test originals that no
profile's bins are from. An answer says what is expected of it: the accuracy of its bin, or of the
second variant where the first one's confidence was in some bin. Answers of one variant of which the
same is expected are a bin here.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from inferway.deployment import load
from inferway.loadgen import Record
from inferway.loadgen import run as drive
from inferway.profiling.intervals import mean_score
from inferway.studies.live.servers import serving

_TASK: Final = "digits"
# A bin is held against its images where these are of so many originals: of a few, resampling
# originals makes an interval that is too narrow.
LEAST: Final = 10


def on_server(
    *,
    variants: Sequence[str],
    policy: str,
    target: float,
    rate_per_s: float,
    duration_s: float,
    seed: int,
) -> dict[str, list[float] | float]:
    """Serve the zoo on this machine, send it a Poisson stream, and hold its answers to the labels.

    Returns
    -------
    dict
        Columns of `by_bin`, and ``answers``, their number.
    """
    document = {
        "tasks": {
            _TASK: {
                "accuracy_target": target,
                "variants": {name: {"model": f"zoo://{_TASK}/{name}"} for name in variants},
            }
        },
        "nodes": {"here": {"instances": {f"{_TASK}/{name}": 1 for name in variants}, "buffer": 64}},
        "dispatch": {"policy": policy},
        "workload": {_TASK: {"arrivals": {"process": "poisson", "rate": f"{rate_per_s:g}/s"}}},
        "seed": seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "served.yaml"
        file.write_text(json.dumps(document), encoding="utf-8")
        with serving({policy: file}) as addresses:
            url = addresses[policy].url
            record = drive(load(file), url, duration_s=duration_s, seed=seed)[_TASK]
    return {**by_bin(record, seed=seed), "answers": float(record.answered.sum())}


def by_bin(record: Record, *, seed: int) -> dict[str, list[float] | float]:
    """Hold what is expected of answers against their labels, bin by bin.

    Returns
    -------
    dict
        By bin whose images are of at least `LEAST` originals: ``promised`` and ``observed``
        accuracy, ``low`` and ``high``, the 95 % interval of the latter (originals drawn anew), and
        ``weight``, its share of the answers. The share of all other answers is ``left_out``.
    """
    columns: dict[str, list[float]] = {
        name: [] for name in ("promised", "observed", "low", "high", "weight")
    }
    known = np.isfinite(record.expected) & np.isfinite(record.score)
    bins = np.stack([record.variant[known], record.expected[known]], axis=1)
    places, place = np.unique(bins, axis=0, return_inverse=True)
    place = place.reshape(-1)
    for b, (_, promised) in enumerate(places.tolist()):
        here = place == b
        score, source = record.score[known][here], record.group[known][here]
        if len(np.unique(source)) < LEAST:
            continue
        mean, (low, high) = mean_score(score, source, seed=seed)
        values = (promised, mean, low, high, here.mean())
        for column, value in zip(columns.values(), values, strict=True):
            column.append(float(value))
    return {**columns, "left_out": 1.0 - sum(columns["weight"])}
