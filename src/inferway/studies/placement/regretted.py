"""Runs under four kinds of demand, beside the best static allocation of every horizon."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from inferway.network import DeliveryNetwork, Demand
from inferway.placement import Observation, build_policy, minimal, relaxation, serve
from inferway.placement.contract import Allocation, Float
from inferway.placement.regret import regret_bound
from inferway.placement.serving import spent
from inferway.studies.placement.trial import OWN, scenario

# Environment variable that names a folder with the Azure LLM inference traces, for `recorded`.
VARIABLE: Final = "INFERWAY_TRACES"
_TRACE: Final = "AzureLLMInferenceTrace_conv.csv"

Batch = Callable[[int, Allocation], Float]  # requests of a slot, given what runs in it


def trace() -> Path | None:
    """The recorded trace, where its folder is named and has it."""
    folder = os.environ.get(VARIABLE)
    file = None if folder is None else Path(folder) / _TRACE
    return file if file is not None and file.is_file() else None


def regretted(
    kind: str,
    policy: str,
    system: str,
    alpha: float,
    rate_per_s: float,
    horizons: list[int],
    seed: int,
) -> dict[str, Any]:
    """Run a policy that learns under one kind of demand, until the last horizon.

    ``own_ms``, ``best_ms`` and ``dynamic_ms`` are gains per request until each horizon: the run's,
    as served; what no static allocation can exceed with the requests of these slots; and what no
    sequence of allocations can, each chosen for the requests of its slot. ``bound_ms`` is Theorem
    V.1's A / sqrt(T), per request.
    """
    slots = horizons[-1]
    sliding = kind != "fixed"
    built = scenario(system, alpha=alpha, rate_per_s=rate_per_s, sliding=sliding, seed=seed)
    network = _planned(built.network)
    batch, means = _demand(kind, network, built.demand, rate_per_s, slots)
    options: dict[str, Any] = {"rounding": "fresh"} if policy.startswith("infida") else {}
    if policy == "infida-app-g":
        options["learning_rate"] = regret_bound(network).rate(slots)
    if policy == "infida-coupled":
        options = {}
    made = (
        OWN[policy](network, seed=seed)
        if policy in OWN
        else build_policy(policy.split("-")[0], network, seed=seed, **options)
    )
    least, load = minimal(network).astype(np.uint8), np.zeros(len(network.options.pair))
    gains, asked, chosen = np.zeros(slots), np.zeros(slots), []
    for slot in range(slots):
        requests = batch(slot, made.allocation)
        chosen.append(means(slot, requests))
        asked[slot] = requests.sum()
        alone = spent(network, serve(network, requests, least, out=load)).sum()
        gains[slot] = (
            alone - spent(network, serve(network, requests, made.allocation, out=load)).sum()
        )
        made.step(Observation(requests, load))
    own, best, dynamic = [], [], []
    each = _slot_by_slot(network, chosen)
    for horizon in horizons:
        per_request = float(asked[:horizon].mean())
        own.append(float(gains[:horizon].mean() / per_request))
        best.append(relaxation(network, np.array(chosen[:horizon])) / per_request)
        dynamic.append(float(each[:horizon].mean()) / per_request)
    a = regret_bound(network).constant / float(asked.mean())
    return {
        "own_ms": own,
        "best_ms": best,
        "dynamic_ms": dynamic,
        "bound_ms": [a / math.sqrt(horizon) for horizon in horizons],
    }


def _slot_by_slot(network: DeliveryNetwork, chosen: list[Float]) -> Float:
    """(T,) what no allocation of a slot can gain more of its requests; few slots differ."""
    bound: dict[bytes, float] = {}
    for requests in chosen:
        name = requests.tobytes()
        if name not in bound:
            bound[name] = relaxation(network, requests[None])
    return np.array([bound[requests.tobytes()] for requests in chosen])


def _planned(network: DeliveryNetwork) -> DeliveryNetwork:
    """The same with a cloud for ten times the requests: a recording has its own peaks."""
    pairs = network.pairs
    many = np.where(network.repository[pairs.node], 10.0, 1.0)
    return replace(network, pairs=pairs._replace(pinned=pairs.pinned * many))


def _demand(
    kind: str, network: DeliveryNetwork, demand: Demand, rate_per_s: float, slots: int
) -> tuple[Batch, Callable[[int, Float], Float]]:
    """Requests by slot, and the mean requests of a slot, of which there are few different ones."""
    if kind in ("fixed", "sliding"):
        expected = [demand.expected(slot) for slot in range(min(slots, 240))]
        return (
            lambda slot, _: demand.counts(slot).astype(float),
            lambda slot, _: expected[slot % len(expected)],
        )
    if kind == "recorded":
        minutes = _recorded(network, rate_per_s)
        return (
            lambda slot, _: minutes[slot % len(minutes)],
            lambda slot, requests: minutes[slot % len(minutes)],
        )
    # The adversary sees what runs and asks for the tasks that gain the least from it, of the four
    # popularities of a day.
    four = [demand.expected(60 * hour) for hour in range(4)]
    least = minimal(network).astype(np.uint8)
    alone = [spent(network, serve(network, one, least)).sum() for one in four]

    def worst(slot: int, allocation: Allocation) -> Float:
        del slot
        gains = [
            anyway - spent(network, serve(network, one, allocation)).sum()
            for one, anyway in zip(four, alone, strict=True)
        ]
        return four[int(np.argmin(gains))]

    return worst, lambda slot, requests: requests


def _recorded(network: DeliveryNetwork, rate_per_s: float) -> Float:
    """(minutes, R) requests of the trace, a task for each of 20 ranges of prompt lengths.

    The ranges are of equal width in the logarithm, the most frequent one first. The mean rate is
    brought to `rate_per_s`; what entered where is split evenly.
    """
    file = trace()
    assert file is not None  # as `found` sees
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [
            (datetime.fromisoformat(row["TIMESTAMP"][:26]), int(row["ContextTokens"]))
            for row in csv.DictReader(lines)
        ]
    start = rows[0][0]
    minute = np.array([int((at - start).total_seconds() // 60) for at, _ in rows])
    length = np.log(np.array([max(tokens, 1) for _, tokens in rows], float))
    edges = np.linspace(length.min(), length.max(), len(network.tasks) + 1)
    ranges = np.clip(np.searchsorted(edges, length, side="right") - 1, 0, len(network.tasks) - 1)
    rank = np.argsort(np.argsort(-np.bincount(ranges, minlength=len(network.tasks))))
    counts = np.zeros((int(minute.max()), len(network.tasks)))
    whole = minute < len(counts)  # the last minute is cut off
    np.add.at(counts, (minute[whole], rank[ranges[whole]]), 1.0)
    counts *= rate_per_s * network.slot_s / counts.sum(axis=1).mean()
    return np.rint(counts[:, network.requests.task] * network.requests.share)
