"""Slotted sites beside the general engine: random ones, and both run slot by slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from plain_site import Words
from systems import HERE, batch_rules, phases, poisson, service_times

from inferway.deployment import ServiceTime
from inferway.deployment.workloads import MapArrivals
from inferway.dispatch.alias import Alias, set_routing
from inferway.learning.arrivals import next_event
from inferway.learning.control import Control
from inferway.learning.site import SlottedSites
from inferway.scheduling import Signal
from inferway.scheduling.observation import ObservationLayout, layout_of, observe
from inferway.site import Fleet, Request, empty_site
from inferway.twin import Scenario
from inferway.twin.engine import GeneralEngine, engine_of
from inferway.twin.kernel.state import REROUTED
from inferway.workload import Chunk

LISTED = "./policies/listed.py:Listed"


class Slot(NamedTuple):
    """What one slot came to."""

    counts: dict[str, list[Any]]
    """Since the beginning."""
    observation: np.ndarray


class Decision(NamedTuple):
    """What is set for a slot."""

    probabilities: np.ndarray
    """(n,)"""
    batches: np.ndarray
    """(K, 2)"""


def markovian(d0: list[list[float]], d1: list[list[float]]) -> MapArrivals:
    """A Markovian arrival process."""
    return MapArrivals.read({"process": "map", "d0": d0, "d1": d1})


def in_slots(control: Control, seed: int, decisions: list[Decision]) -> Iterator[Slot]:
    """The kernel's run of one site."""
    sites = SlottedSites(control, seed=seed)
    for decision in decisions:
        sites.step(decision.probabilities[None], decision.batches[None])
        counts = sites.counts
        found = {
            name: getattr(counts, name)[0].tolist()
            for name in ("arrived", "rejected", "dropped", "sent")
        }
        found["late"] = counts.answered[0, ..., 1].tolist()
        found["answered"] = counts.answered[0].sum(axis=-1).tolist()
        yield Slot(found, sites.observation[0].copy())


def by_events(control: Control, seed: int, decisions: list[Decision]) -> Iterator[Slot]:
    """The same site in the general engine: same arrivals, same words for the same decisions."""
    scenario = control.scenario
    end_s = len(decisions) * control.slot_s
    times_s, came, course = arrivals_of(control, seed, end_s)
    engine = engine_of(scenario, seed=seed, kind="general")
    assert isinstance(engine, GeneralEngine)
    # Slotted routing is blind: it leaves no server out that would be late.
    bound = engine.world.bound._replace(narrows=False)
    engine.world = engine.world._replace(bound=bound)
    engine._stream = iter([Chunk(times_s, came)])
    engine.count_anew()
    layout = layout_for(control)
    words = Words(int(np.random.SeedSequence([seed, 0]).generate_state(1, np.uint64)[0]))
    first = 0
    for t, decision in enumerate(decisions):
        until_s = (t + 1) * control.slot_s
        last = int(np.searchsorted(times_s, until_s, side="right"))
        engine.policy.server[first:last] = drawn(scenario, decision, words, last - first)
        engine.policy.smallest[:], engine.policy.largest[:] = decision.batches.T
        engine.world.counts[REROUTED] = 1
        engine.advance(len(times_s), until_s)
        first, tally = last, engine.tally
        names = ("arrived", "rejected", "dropped", "sent", "late", "answered")
        yield Slot(
            {name: getattr(tally, name).tolist() for name in names},
            observe(layout, engine.site, course(until_s)),
        )


def drawn(scenario: Scenario, decision: Decision, words: Words, requests: int) -> list[int]:
    """The servers that the policy `alias` draws from a stream of words."""
    fleet = scenario.fleet
    alias = Alias.build(fleet, target=None, rate_per_s=None)
    set_routing(alias, decision.probabilities)
    site = empty_site(fleet, None, 1)
    request = Request(0.0, np.inf, 0.0, 0, 1, -1, site.open, False)
    return [alias.choose(site, request, words.word()) for _ in range(requests)]


def arrivals_of(control: Control, seed: int, end_s: float) -> tuple[np.ndarray, np.ndarray, Any]:
    """Arrivals of the first site up to a time and one beyond, their phases, and the course."""
    sites = SlottedSites(control, seed=seed)
    flow, state = sites._sites.flow, sites._sites.states[0, 2]
    phase, now_s = int(flow.phase[0]), float(flow.next_s[0])
    times_s, came = [], []
    starts, phases = [float(flow.switch_s[0])], [phase]
    while not times_s or times_s[-1] <= end_s:
        then = phase
        arrives, phase, next_s, state = next_event(flow, 0, phase, now_s, np.uint64(state))
        if arrives:
            times_s.append(now_s)
            came.append(then)
        if phase != then or not arrives:
            starts.append(now_s)
            phases.append(phase)
        now_s = next_s

    def course(at_s: float) -> Signal:
        place = int(np.searchsorted(starts, at_s, side="right")) - 1
        return Signal(phases[place], at_s - starts[place])

    return np.array(times_s), np.array(came), course


def layout_for(control: Control) -> ObservationLayout:
    """The layout of what a controller of these sites sees."""
    scenario = control.scenario
    fleet = scenario.fleet
    offers = scenario.batches or (None,) * len(fleet.rate)
    times_s = [
        [time.mean_s] if batch is None else list(batch.service_s)
        for batch, time in zip(offers, scenario.service, strict=True)
    ]
    layout = layout_of(
        counts=fleet.count,
        service_s=1.0 / fleet.rate,
        buffer=int(fleet.buffer or 0),
        batch_sizes=control.sizes,
        batch_service_s=times_s,
        phases=control.phases if control.sees_phase else 0,
        longest_phase_s=max(
            (one.for_ or 0.0 for one in getattr(scenario.arrivals, "phases", ())), default=0.0
        ),
    )
    return layout if control.batches else layout._replace(largest=0)


@st.composite
def controls(draw: st.DrawFn, *, exact: bool = True) -> Control:
    """Any site that is controlled in slots; exact service times take always the same time."""
    classes = draw(st.integers(1, 3))
    each: Any = {"min_size": classes, "max_size": classes}
    fleet = Fleet(
        variants=tuple("abc"[:classes]),
        rate=np.array(draw(st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0, 17.0]), **each))),
        accuracy=np.array(draw(st.lists(st.sampled_from([0.5, 0.625, 0.875]), **each))),
        count=np.array(draw(st.lists(st.integers(1, 3), **each))),
        buffer=draw(st.sampled_from([1, 2, 3, 4, 7, 8, 15])),
    )
    means = (1 / fleet.rate).tolist()
    batched = draw(st.booleans())
    rules = tuple(draw(st.none() | batch_rules(mean_s)) if batched else None for mean_s in means)
    service = tuple(
        ServiceTime("deterministic", mean_s) if exact else draw(service_times(mean_s))
        for mean_s in means
    )
    capacity = float(fleet.capacity.sum())
    load = st.floats(0.05, 2.0)
    kind = draw(st.sampled_from(["poisson", "phases", "map", "along"]))
    low, high = draw(load) * capacity, draw(load) * capacity
    if kind == "poisson":
        arrivals: Any = poisson(low)
    elif kind == "phases":
        arrivals = phases((draw(st.floats(0.3, 4)), low, None), (1.7, high, None))
    else:
        share = 0.4 if kind == "along" else 0.0
        arrivals = markovian(
            [[-low - 0.3, 0.3], [0.5, -high - 0.5]],
            [[low * (1 - share), low * share], [high * share, high * (1 - share)]],
        )
    scenario = Scenario(
        fleet=fleet,
        service=service,
        arrivals=arrivals,
        policy=LISTED,
        deadline_s=max(means) * draw(st.floats(1.01, 8)) if draw(st.booleans()) else None,
        late=draw(st.sampled_from(["drop", "serve"])),
        batches=rules if any(rules) else (),
        folder=HERE,
    )
    return Control(
        scenario,
        slot_s=draw(st.sampled_from([0.25, 1.0])),
        sees_phase=draw(st.booleans()),
        batches=any(rules) and draw(st.booleans()),
    )


def decisions_for(control: Control, slots: int, seed: int) -> list[Decision]:
    """Anything that a controller may decide."""
    fleet = control.scenario.fleet
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(slots):
        weights = chance.random(fleet.servers) * (chance.random(fleet.servers) < 0.7)
        weights[chance.integers(fleet.servers)] += 0.1
        batches = np.array([np.sort(chance.choice(sizes, 2)) for sizes in control.sizes])
        # A batch that is waited for must find room.
        batches[:, 0] = np.minimum(batches[:, 0], int(fleet.buffer or 0))
        found.append(Decision(weights / weights.sum(), np.sort(batches, axis=1)))
    return found
