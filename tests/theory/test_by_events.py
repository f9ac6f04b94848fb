"""Sites of a learner under `late: drop`, and with services that drift, against plain ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st
from plain_site import Words
from slotted import Decision, arrivals_of, controls, decisions_for, layout_for, markovian

from inferway.deployment import ServiceTime
from inferway.dispatch.alias import among, set_routing
from inferway.learning.by_events import EventSites
from inferway.learning.control import Control
from inferway.learning.site import PhaseTally, SlottedSites, sites_of
from inferway.scheduling.observation import observe
from inferway.site import Fleet, uniform
from inferway.twin import Scenario, run
from inferway.twin.engine import GeneralEngine, engine_of
from inferway.twin.kernel.state import REROUTED
from inferway.twin.service_walk import ServiceWalk
from inferway.workload import Chunk

QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
# More than the four servers can do, and little.
BURSTS = markovian([[-260.5, 0.5], [0.2, -10.2]], [[260.0, 0.0], [0.0, 10.0]])


def site(*, spread: float = 0.0, **options: Any) -> Control:
    """The site of the paper, in shorter bursts; options are the scenario's."""
    service_s = np.array([0.0107, 0.0429])
    kind = "lognormal" if spread else "deterministic"
    fleet = Fleet(
        ("light", "heavy"), 1 / service_s, np.array([0.7, 0.8]), np.array([2, 2]), buffer=15
    )
    service = tuple(ServiceTime(kind, mean_s, cv=spread) for mean_s in service_s.tolist())
    given: dict[str, Any] = {"deadline_s": 0.3, "late": "drop", "arrivals": BURSTS, **options}
    return Control(Scenario(fleet=fleet, service=service, policy="alias", **given))


@QUICK
@given(controls(), st.integers(0, 2**31))
def test_the_twin_with_late_drop_slot_by_slot(control: Control, seed: int) -> None:
    """The same actions give the same drops, answers and observations."""
    control = replace(control, scenario=replace(control.scenario, late="drop", policy="alias"))
    note(str(control))
    decisions = decisions_for(control, 20, seed)
    times_s, came, course = arrivals_of(control, seed, len(decisions) * control.slot_s)
    twin = engine_of(control.scenario, seed=seed, kind="general")
    assert isinstance(twin, GeneralEngine)
    twin._stream = iter([Chunk(times_s, came)])
    twin.count_anew()
    sites = EventSites(control, seed=seed)
    for t, (probabilities, batches) in enumerate(decisions):
        sites.step(probabilities[None], batches[None])
        set_routing(twin.policy, probabilities, *batches.T)
        twin.world.counts[REROUTED] = 1
        until_s = (t + 1) * control.slot_s
        twin.advance(len(times_s), until_s)
        for name in ("arrived", "rejected", "dropped", "sent"):
            expected = getattr(twin.tally, name).tolist()
            assert getattr(sites.counts, name)[0].tolist() == expected, (t, name)
        late = sites.counts.answered[0, ..., 1]
        assert late.tolist() == twin.tally.late.tolist()
        assert sites.counts.answered[0].sum(axis=-1).tolist() == twin.tally.answered.tolist()
        seen = observe(layout_for(control), twin.site, course(until_s))
        np.testing.assert_allclose(sites.observation[0], seen, atol=1e-6)


def test_a_plain_site_under_the_shield() -> None:
    """One by one, with services that take always the same time: nothing is late or dropped."""
    control = site()
    decisions = decisions_for(control, 60, 3)
    sites = EventSites(control, seed=3)
    for probabilities, batches in decisions:
        sites.step(probabilities[None], batches[None])
    arrived, rejected, sent = plain(control, 3, decisions)
    counts = sites.counts
    assert (counts.arrived.sum(), counts.rejected.sum()) == (arrived, rejected)
    assert counts.sent.sum(axis=(0, 1)).tolist() == sent.tolist()
    assert counts.answered[..., 1].sum() == counts.dropped.sum() == 0
    assert 0 < rejected < arrived


def plain(control: Control, seed: int, decisions: list[Decision]) -> tuple[int, int, np.ndarray]:
    """Arrived, turned away, and sent by class, of a site written down once more."""
    scenario, slot_s = control.scenario, control.slot_s
    fleet, deadline_s = scenario.fleet, 0.3
    service_s = np.repeat([time.mean_s for time in scenario.service], fleet.count)
    times_s, _, _ = arrivals_of(control, seed, len(decisions) * slot_s)
    words = Words(int(np.random.SeedSequence([seed, 0]).generate_state(1, np.uint64)[0]))
    ends_s: list[list[float]] = [[] for _ in service_s]
    rejected, sent = 0, np.zeros(len(fleet.count), np.int64)
    starts_s: list[float] = []  # A server that begins a run takes a word, too, for its size
    arrivals = times_s[times_s <= len(decisions) * slot_s].tolist()
    for now_s in arrivals:
        ends_s = [[end_s for end_s in of if end_s > now_s] for of in ends_s]
        begins_s = [of[-1] if of else now_s for of in ends_s]
        fits = np.array(
            [
                len(of) < 15 and begin_s + time_s <= now_s + deadline_s
                for of, begin_s, time_s in zip(ends_s, begins_s, service_s, strict=True)
            ]
        )
        for start_s in [one for one in starts_s if one <= now_s]:
            starts_s.remove(start_s)
            words.word()
        word, share = words.word(), decisions[int(now_s / slot_s)].probabilities
        if not fits.any():
            rejected += 1
            continue
        server = among(share, fits, uniform(word, 1))
        if not ends_s[server]:
            words.word()
        else:
            starts_s.append(begins_s[server])
        ends_s[server].append(begins_s[server] + service_s[server])
        sent[np.repeat(np.arange(len(fleet.count)), fleet.count)[server]] += 1
    return len(arrivals), rejected, sent


def test_what_is_dropped_or_turned_away_costs_what_a_rejected_request_does() -> None:
    control = replace(site(spread=1.0), rejected_weight=0.5, gains=(0.6, 0.9))
    sites = sites_of(control, count=20, seed=2)
    assert isinstance(sites, EventSites)
    even = np.full((20, 4), 0.25)
    paid = np.zeros(20)
    for _ in range(80):
        paid += sites.step(even)
    counts = sites.counts
    assert counts.dropped.sum() > 0
    assert counts.answered[..., 1].sum() > 0
    timely, late = counts.answered[..., 0].sum(axis=1), counts.answered[..., 1].sum(axis=(1, 2))
    lost = (counts.rejected + counts.dropped).sum(axis=1)
    np.testing.assert_allclose(paid, timely @ [0.6, 0.9] - late - 0.5 * lost)
    assert PhaseTally.of(sites).rejected.sum() == lost.sum()


def test_sites_without_the_shield_stay_as_they_are() -> None:
    assert isinstance(sites_of(site(late="serve")), SlottedSites)
    assert isinstance(sites_of(site(deadline_s=None)), SlottedSites)
    drifting = site(late="serve", walk=ServiceWalk())
    assert isinstance(sites_of(drifting), EventSites)
    with pytest.raises(ValueError, match="services drift at sites that run by events"):
        SlottedSites(drifting)


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_goes_on_where_it_was_to_the_last_digit(spread: float) -> None:
    control = site(spread=spread, walk=ServiceWalk(step=0.1))
    sites, again = EventSites(control, count=3, seed=5), EventSites(control, count=3, seed=6)
    random = np.random.default_rng(1)
    actions = random.random((30, 3, 4))
    for action in actions[:10]:
        sites.step(action)
    state = sites.state()
    expected = [(sites.step(one).tolist(), sites.observation.tolist()) for one in actions[10:]]
    again.step(actions[0])
    again.restore(state)
    assert [(again.step(one).tolist(), again.observation.tolist()) for one in actions[10:]] == (
        expected
    )
    assert again.factor.tolist() == sites.factor.tolist()
    with pytest.raises(ValueError, match="not one of 2 such sites"):
        EventSites(control, count=2).restore(state)


def test_a_site_is_the_same_among_few_and_many() -> None:
    control = site(spread=0.5, walk=ServiceWalk())
    few, many = EventSites(control, count=2, seed=9), EventSites(control, count=5, seed=9)
    for action in np.random.default_rng(1).random((20, 5, 4)):
        few.step(action[:2])
        many.step(action)
    assert few.observation.tolist() == many.observation[:2].tolist()
    assert few.factor.tolist() == many.factor[:2].tolist()


def test_a_walk_keeps_its_bounds_and_is_uniform_in_the_logarithm() -> None:
    walk = ServiceWalk(low=0.8, high=1.6, step=0.3)
    random = np.random.default_rng(4)
    factor = walk.begin(random, 20_000)
    for _ in range(30):
        factor = walk.after(factor, 1.0, random)
    assert factor.min() >= 0.8
    assert factor.max() <= 1.6
    share = (np.log(factor) - np.log(0.8)) / np.log(2)
    np.testing.assert_allclose(np.histogram(share, 5, (0, 1))[0], 4000, rtol=0.08)
    small = ServiceWalk(low=0.5, high=2.0, step=0.01)
    moved = np.log(small.after(np.ones(20_000), 4.0, random))
    assert moved.std() == pytest.approx(0.02, rel=0.05)
    still = ServiceWalk(low=1.2, high=1.2)
    assert still.after(still.begin(random, 3), 1.0, random).tolist() == pytest.approx([1.2] * 3)


@pytest.mark.parametrize("wrong", [{"low": 0.0}, {"low": 2.0}, {"step": 0.0}, {"every_s": 0.0}])
def test_no_walk(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        ServiceWalk(**wrong)


@pytest.mark.parametrize("policy", ["alias", "deadline"])
def test_services_of_the_twin_drift_and_the_site_learns_of_it(policy: str) -> None:
    """Its services take as long as the factor says, and predictions follow it."""
    calm = markovian([[-2.0]], [[2.0]])
    walk = ServiceWalk(low=0.8, high=1.6, step=0.02, every_s=0.5)
    scenario = replace(site(arrivals=calm, walk=walk).scenario, policy=policy)
    engine = engine_of(scenario, seed=3)
    assert isinstance(engine, GeneralEngine)
    factors = []
    for second in range(1, 300):
        engine.advance(1000, float(second))
        engine.slow_down()
        factors.append(engine.slowness[0])
    assert max(factors) / min(factors) > 1.2
    assert 0.8 <= min(factors) <= max(factors) <= 1.6
    # The rule takes the first of servers that are alike.
    server = 3 if policy == "alias" else 2
    assert engine.site.measured[server, 0] > 50
    assert engine.site.row_s[server, 0] / 0.0429 == pytest.approx(np.mean(factors[-20:]), rel=0.1)
    assert factors[-1] != pytest.approx(1.0, rel=0.1)


def test_a_run_of_the_twin_drifts() -> None:
    calm = markovian([[-1.0]], [[1.0]])
    scenario = site(arrivals=calm).scenario
    told = {"queries": 3_000, "seed": 5, "workers": 1}
    slow = replace(scenario, walk=ServiceWalk(low=1.5, high=1.5))
    plainly, slower = run(scenario, **told), run(slow, **told)  # type: ignore[arg-type]
    mean_s = plainly.response_time_s.mean
    assert slower.response_time_s.mean / mean_s == pytest.approx(1.5, rel=0.02)
    drifts = replace(scenario, walk=ServiceWalk(low=0.8, high=1.6, step=0.1))
    found = run(drifts, **told)  # type: ignore[arg-type]
    # The mean of exp(u) for u uniform between the bounds' logarithms.
    assert found.response_time_s.mean / mean_s == pytest.approx(0.8 / np.log(2), rel=0.05)
