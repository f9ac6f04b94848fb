"""The workload's phase as the best estimate from arrival times has it ([Tan24], Sec. 4).

The forward filter of a Markovian arrival process (D0, D1): between arrivals the chances of the
phases move by exp(D0 t), at an arrival by D1, and each time they are divided by their sum. No
estimate from the times of the requests is better. Sites and filter draw the same arrivals, as those
of a site come from a stream of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inferway.deployment.workloads import MapArrivals
from inferway.learning.arrivals import Flow, begin, flow_of, next_event
from inferway.learning.site import Floats, Ints, PhaseTally, SlottedSites
from inferway.site.compiled import entry
from inferway.site.draw import streams
from inferway.studies.scheduling import burst
from inferway.studies.scheduling.train import network
from inferway.studies.scheduling.trial import learned

_SITES = 200
_WARMUP = 10  # slots
_ARRIVALS = 2  # of a site's streams: of decisions, of service times, of arrivals
SEEN, LIKELIEST, CHANCES = "phase", "likeliest", "chances"


class PhaseFilter:
    """Filters of the sites of `SlottedSites` of the same seed, a slot at a time.

    Attributes
    ----------
    chances
        (E, m) of each phase now, given all arrivals so far.
    arrived, phase
        (E,) requests of the last slot, and the true phase, which the filter does not look at.
    """

    def __init__(self, arrivals: MapArrivals, capacity_per_s: float, count: int, seed: int) -> None:
        self._flow = flow_of(arrivals, capacity_per_s, count)
        self._states = np.zeros((count, 3), np.uint64)
        for e in range(count):
            self._states[e] = streams(seed, e, 3)
            begin(self._flow, e, arrivals, np.random.default_rng(streams(seed, e, 4)[3]))
        self._along = np.array(arrivals.d1)
        values, vectors = np.linalg.eig(np.array(arrivals.d0))
        self._values, self._vectors = values.real.copy(), vectors.real.copy()
        self._inverse = np.linalg.inv(self._vectors)
        self._now_s = 0.0
        self.chances = np.tile(arrivals.stationary, (count, 1))
        self.arrived, self.phase = np.zeros(count, np.int64), self._flow.phase

    def step(self, slot_s: float) -> Floats:
        """Take in the arrivals of a slot; the chances at its end, in place."""
        until_s = self._now_s + slot_s
        _filter(
            self._flow, self._states, self._along, self._values, self._vectors, self._inverse,
            self._now_s, until_s, self.chances, self.arrived,
        )  # fmt: skip
        self._now_s = until_s
        return self.chances


@entry
def _filter(
    flow: Flow,
    states: Any,
    along: Floats,
    values: Floats,
    vectors: Floats,
    inverse: Floats,
    from_s: float,
    until_s: float,
    chances: Floats,
    arrived: Ints,
) -> None:
    phases = len(values)
    moved, turned = np.empty(phases), np.empty(phases)
    for e in range(len(chances)):
        last_s, now, state = from_s, flow.next_s[e], states[e, _ARRIVALS]
        phase, count = flow.phase[e], 0
        while True:
            came = False
            at_s = min(now, until_s)
            if now <= until_s:
                came, phase, now, state = next_event(flow, e, phase, now, state)
            if came or at_s >= until_s:
                for j in range(phases):
                    turned[j] = 0.0
                    for i in range(phases):
                        turned[j] += chances[e, i] * vectors[i, j]
                    turned[j] *= np.exp(values[j] * (at_s - last_s))
                for j in range(phases):
                    moved[j] = 0.0
                    for i in range(phases):
                        moved[j] += turned[i] * inverse[i, j]
                last_s, total = at_s, 0.0
                for j in range(phases):
                    chances[e, j] = moved[j]
                if came:
                    count += 1
                    for j in range(phases):
                        chances[e, j] = 0.0
                        for i in range(phases):
                            chances[e, j] += max(moved[i], 0.0) * along[i, j]
                for j in range(phases):
                    total += max(chances[e, j], 0.0)
                for j in range(phases):
                    chances[e, j] = max(chances[e, j], 0.0) / total
            if not came and at_s >= until_s:
                break
        states[e, _ARRIVALS], flow.phase[e], flow.next_s[e] = state, phase, now
        arrived[e] = count


def estimated(*, trained: str, file: str, sees: str, slots: int, seed: int) -> dict[str, Any]:
    """Evaluate a policy that sees the phase, or what the filter says of it.

    It sees the true phase, the likeliest one, or its chances; one that was trained without sees
    nothing. ``wrong`` is the share of slots at whose beginning the likeliest phase is another than
    the true one, and ``wrong_bursty`` of those that begin in a burst.
    """
    del file
    control = burst.control("rl-fo" if trained.startswith("rl-fo") else "rl-po")
    count = min(_SITES, slots)
    run = SlottedSites(control, count=count, seed=seed)
    arrivals = control.scenario.arrivals
    assert isinstance(arrivals, MapArrivals)
    belief = PhaseFilter(arrivals, control.scenario.capacity_per_s, count, seed)
    decide = learned(network(trained))
    first = control.scenario.fleet.servers * control.about().layout.width
    wrong, bursty, missed, all_slots = 0, 0, 0, 0
    for t in range(_WARMUP + -(-slots // count)):
        if t == _WARMUP:
            run.clear()
            wrong = bursty = missed = all_slots = 0
        likeliest, truth = belief.chances.argmax(axis=1), run.phase.copy()
        off, burst_now = likeliest != truth, truth == burst.BURSTY
        wrong, all_slots = wrong + int(off.sum()), all_slots + count
        bursty, missed = bursty + int(burst_now.sum()), missed + int((off & burst_now).sum())
        seen = run.observation.copy()
        if control.sees_phase and sees != SEEN:
            seen[:, first:] = 0.0
            if sees == LIKELIEST:
                seen[np.arange(count), first + likeliest] = 1.0
            else:
                seen[:, first : first + control.phases] = belief.chances
        run.step(*decide(seen))
        belief.step(control.slot_s)
    figures = PhaseTally.of(run).figures()
    return {
        **{name: figures[name] for name in ("goodput", "violations")},
        **{
            f"{column}_{name}": figures[f"{column}_{at}"]
            for name, at in burst.PHASES.items()
            for column in ("goodput", "violations", "heavy")
        },
        "wrong": wrong / all_slots,
        "wrong_bursty": missed / max(bursty, 1),
    }
