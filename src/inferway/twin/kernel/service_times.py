"""Service times: how long a batch takes at a server of each class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from inferway.dispatch.batching import rule_of
from inferway.site.compiled import jit
from inferway.site.draw import exponential, step, unit
from inferway.site.view import Floats, Ints

if TYPE_CHECKING:
    from inferway.deployment import Batch, ServiceTime

KINDS = ("deterministic", "exponential", "lognormal", "erlang", "hyperexponential", "empirical")
_DETERMINISTIC, _EXPONENTIAL, _LOGNORMAL, _ERLANG, _HYPEREXPONENTIAL, _EMPIRICAL = range(6)


class Laws(NamedTuple):
    """Distributions of K classes; a batch's mean is given, and every kind spreads around it."""

    kind: Ints  # (K,) place in `KINDS`
    # (K,) lognormal: standard deviation of the logarithm; Erlang: stages; hyperexponential:
    # probability of the shorter branch, where both branches have the same expected load.
    shape: Floats
    samples: Floats  # Measured times over their mean, the classes' one behind the other
    first: Ints  # (K + 1,) first sample of each class
    # (K, B + 1) the batch that is served where so many requests are taken, the largest offered.
    size: Ints
    # (K, B + 1) mean service time of a batch, s: of the size that so many fill, or are padded to.
    batch_s: Floats
    # (K,) the file's rule: requests below which a server waits for more, the most that it takes,
    # and how long after its first came a batch waits that could be larger, s.
    smallest: Ints
    largest: Ints
    wait_s: Floats


def laws(service: Sequence[ServiceTime], batches: Sequence[Batch | None]) -> Laws:
    """The laws of the classes of a fleet, in its order."""
    largest = max((batch.sizes[-1] for batch in batches if batch is not None), default=1)
    size = np.zeros((len(service), largest + 1), np.int64)
    batch_s = np.zeros((len(service), largest + 1))
    samples: list[Floats] = []
    rules = [rule_of(batch) for batch in batches]
    for k, (time, batch) in enumerate(zip(service, batches, strict=True)):
        offered = {1: time.mean_s}
        if batch is not None:
            offered |= dict(zip(batch.sizes, batch.service_s, strict=True))
        rule = rules[k]
        for taken in range(1, largest + 1):
            size[k, taken] = fitting = rule.rounded(taken)
            beyond = min((one for one in rule.sizes if one >= taken), default=fitting)
            batch_s[k, taken] = offered[beyond if rule.pad else fitting]
        samples.append(np.array(time.samples_s) / time.mean_s)
    return Laws(
        kind=np.array([KINDS.index(time.distribution) for time in service], np.int64),
        shape=np.array([_shape(time) for time in service]),
        samples=np.concatenate([*samples, np.ones(1)]),
        first=np.cumsum([0, *map(len, samples)]),
        size=size,
        batch_s=batch_s,
        smallest=np.array([rule.smallest for rule in rules], np.int64),
        largest=np.array([rule.largest for rule in rules], np.int64),
        wait_s=np.array([rule.wait_s for rule in rules]),
    )


def _shape(time: ServiceTime) -> float:
    match time.distribution:
        case "lognormal":
            return math.sqrt(math.log1p(time.cv**2))
        case "erlang":
            return float(time.stages)
        case "hyperexponential":
            return 0.5 * (1.0 + math.sqrt((time.cv**2 - 1.0) / (time.cv**2 + 1.0)))
    return 0.0


@jit
def draw(laws: Laws, k: int, taken: int, state: Any) -> tuple[float, Any]:
    """The time of one batch at a server of class k, s, and the stream's next state."""
    kind = laws.kind[k]
    mean_s = laws.batch_s[k, taken]
    if kind == _DETERMINISTIC:
        return mean_s, state
    state = step(state)
    if kind == _EXPONENTIAL:
        return mean_s * exponential(state), state
    if kind == _EMPIRICAL:
        count = laws.first[k + 1] - laws.first[k]
        return mean_s * laws.samples[laws.first[k] + int(unit(state) * count)], state
    shape = laws.shape[k]
    if kind == _LOGNORMAL:
        # Box and Muller, doi 10.1214/aoms/1177706645.
        radius = math.sqrt(2.0 * exponential(state))
        state = step(state)
        normal = radius * math.cos(2.0 * math.pi * unit(state))
        return mean_s * math.exp(shape * (normal - 0.5 * shape)), state
    if kind == _ERLANG:
        total = exponential(state)
        for _ in range(1, int(shape)):
            state = step(state)
            total += exponential(state)
        return mean_s * total / shape, state
    branch = shape if unit(state) < shape else 1.0 - shape
    state = step(state)
    return mean_s * exponential(state) / (2.0 * branch), state
