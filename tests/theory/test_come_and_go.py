"""Sites of a learner whose servers come and go, against plain ones, and against the twin."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st
from plain_site import Words
from slotted import Decision, arrivals_of, controls, decisions_for, markovian

from inferway.deployment import ServiceTime
from inferway.dispatch.alias import Alias, set_routing
from inferway.learning.by_events import EventSites
from inferway.learning.control import Control
from inferway.learning.site import PhaseTally, SlottedSites, sites_of
from inferway.scheduling import UNKNOWN
from inferway.scheduling.observation import observe
from inferway.site import Fleet, uniform
from inferway.site.draw import streams
from inferway.twin import Scenario, run
from inferway.twin.scenario import Failures

QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
SERVICE_S = np.array([0.0107, 0.0429])
BURSTS = markovian([[-180.5, 0.5], [0.2, -10.2]], [[180.0, 0.0], [0.0, 10.0]])


def site(every_s: float, for_s: float, **options: object) -> Control:
    """The site of the paper in short bursts; options are the scenario's."""
    fleet = Fleet(
        ("light", "heavy"), 1 / SERVICE_S, np.array([0.7, 0.8]), np.array([2, 2]), buffer=15
    )
    scenario = Scenario(
        fleet=fleet,
        service=tuple(ServiceTime("deterministic", mean_s) for mean_s in SERVICE_S.tolist()),
        arrivals=BURSTS,
        policy="alias",
        deadline_s=0.3,
        late="serve",
        failures=dict.fromkeys(fleet.variants, Failures(every_s, for_s)),
    )
    return Control(replace(scenario, **options))  # type: ignore[arg-type]


@QUICK
@given(controls(), st.integers(0, 2**31), st.sampled_from([0.5, 3.0]))
def test_a_plain_site_whose_servers_come_and_go(
    control: Control, seed: int, every_s: float
) -> None:
    """What is at a server that goes is routed anew, oldest first; who finds no place is lost."""
    scenario = replace(
        control.scenario,
        policy="alias",
        late="serve",
        batches=(),
        failures={control.scenario.fleet.variants[-1]: Failures(every_s, 1.0)}
        | {name: Failures(2.0, 0.7) for name in control.scenario.fleet.variants[:-1]},
    )
    control = replace(control, scenario=scenario, batches=False)
    note(str(control))
    decisions = decisions_for(control, 25, seed)
    sites = SlottedSites(control, seed=seed)
    away = [sites.away[0].copy()]
    rewards = []
    for decision in decisions:
        rewards.append(float(sites.step(decision.probabilities[None])[0]))
        away.append(sites.away[0].copy())
    assert any((one != other).any() for one, other in pairwise(away))
    counts = sites.counts
    arrived, rejected, answered, late = plain(control, seed, decisions, away)
    assert (counts.arrived.sum(), counts.rejected.sum()) == (arrived, rejected)
    assert counts.answered[0].sum(axis=0)[:, 0].tolist() == (answered - late).tolist()
    assert counts.answered[0].sum(axis=0)[:, 1].tolist() == late.tolist()
    worth = float((answered - late) @ np.array(control.reward_gains) - late.sum() - rejected)
    assert sum(rewards) == pytest.approx(worth)


def plain(
    control: Control, seed: int, decisions: list[Decision], away: list[np.ndarray]
) -> tuple[int, int, np.ndarray, np.ndarray]:
    """Arrived, rejected, answered and late by class, of a site written down once more."""
    scenario, slot_s = control.scenario, control.slot_s
    fleet, n = scenario.fleet, scenario.fleet.servers
    service_s = np.repeat([time.mean_s for time in scenario.service], fleet.count)
    of_class = np.repeat(np.arange(len(fleet.rate)), fleet.count)
    words = Words(int(streams(seed, 0, 3)[0]))
    times_s, _, _ = arrivals_of(control, seed, len(decisions) * slot_s)
    # By server, when a request came and when its service ends.
    there: list[list[tuple[float, float]]] = [[] for _ in range(n)]
    ended: list[tuple[int, bool]] = []
    rejected = 0

    def join(share: np.ndarray, gone: np.ndarray, now_s: float, came_s: float) -> None:
        nonlocal rejected
        alias = Alias.build(fleet, target=None, rate_per_s=None)
        set_routing(alias, share / share.sum())
        u = uniform(words.word(), 0) * n
        column = int(u)
        server = column if u - column < alias.threshold[column] else int(alias.other[column])
        if gone[server] or len(there[server]) >= int(fleet.buffer or 0):
            rejected += 1
            return
        begins_s = max(now_s, there[server][-1][1] if there[server] else now_s)
        there[server].append((came_s, begins_s + service_s[server]))

    def leave(now_s: float) -> None:
        for server, waiting in enumerate(there):
            for came_s, end_s in waiting:
                if end_s <= now_s:
                    ended.append((of_class[server], end_s > came_s + control.deadline_s))
            there[server] = [one for one in waiting if one[1] > now_s]

    def among(share: np.ndarray, gone: np.ndarray) -> np.ndarray:
        left = np.where(gone == 0, share, 0.0)
        alike = (gone == 0).astype(float) if (gone == 0).any() else np.ones(n)
        return left if left.sum() > 0 else alike

    for t, decision in enumerate(decisions):
        share = among(decision.probabilities, away[t])
        begin_s, end_s = t * slot_s, (t + 1) * slot_s
        for now_s in times_s[(times_s > begin_s) & (times_s <= end_s)].tolist():
            leave(now_s)
            join(share, away[t], now_s, now_s)
        leave(end_s)
        share = among(share, away[t + 1])
        for server in np.flatnonzero((away[t + 1] != 0) & (away[t] == 0)).tolist():
            moved, there[server] = there[server], []
            for came_s, _ in moved:
                join(share, away[t + 1], end_s, came_s)
    answered, late = np.zeros((2, len(fleet.rate)), np.int64)
    for k, is_late in ended:
        answered[k] += 1
        late[k] += is_late
    arrived = int(((times_s > 0) & (times_s <= len(decisions) * slot_s)).sum())
    return arrived, rejected, answered, late


def test_servers_are_away_for_the_share_of_time_that_is_said() -> None:
    control = site(30.0, 10.0)
    sites = SlottedSites(control, count=200, seed=2)
    assert sites.away.mean() == pytest.approx(0.25, abs=0.05)  # in its long run from the start
    alike = np.full((200, 4), 0.25)
    away, changes = [], 0
    for _ in range(400):
        before = sites.away.copy()
        sites.step(alike)
        away.append(sites.away.mean())
        changes += int(((before == 0) & (sites.away != 0)).sum())
    assert np.mean(away) == pytest.approx(0.25, abs=0.01)
    # Seen where slots end: one that goes and is back within a slot is not seen.
    forgets_per_s = 1 / 30 + 1 / 10
    expected = 200 * 4 * 400 * 0.75 * 0.25 * -np.expm1(-forgets_per_s)
    assert changes == pytest.approx(expected, rel=0.05)


def test_sites_of_both_kinds_come_to_what_the_twin_does() -> None:
    control = site(20.0, 5.0)
    routing = np.array([0.4, 0.4, 0.1, 0.1])

    def tally(count: int, slots: int, kind: type) -> PhaseTally:
        sites = kind(control, count=count, seed=4)
        for t in range(slots + 40):
            if t == 40:
                sites.clear()
            sites.step(np.tile(routing, (count, 1)))
        return PhaseTally.of(sites)

    whole = run(
        replace(control.scenario, options={"probabilities": {"light": 0.8, "heavy": 0.2}}),
        queries=400_000,
        seed=3,
        warmup=5_000,
        workers=1,
    )
    for kind, count, slots in ((SlottedSites, 100, 1_000), (EventSites, 20, 1_000)):
        found = tally(count, slots, kind)
        for place, phase in enumerate(whole.phases):
            assert found.goodput[place] == pytest.approx(phase.goodput, abs=0.02), kind
            assert found.violations[place] == pytest.approx(phase.violation_ratio, abs=0.025), kind


@pytest.mark.parametrize("options", [{}, {"late": "drop"}])
def test_observations_say_who_is_there(options: dict[str, str]) -> None:
    control = site(3.0, 2.0, **options)
    sites = sites_of(control, count=5, seed=6)
    assert isinstance(sites, EventSites if options else SlottedSites)
    layout = control.about().layout
    assert (layout.flagged, layout.size) == (slice(132, 136), 136)
    seen_away = 0
    for _ in range(60):
        sites.step(np.full((5, 4), 0.25))
        for e in range(5):
            away = sites.away[e] != 0
            seen = sites.observation[e]
            assert seen[132:].tolist() == (~away).astype(float).tolist()
            assert not seen[:132].reshape(4, 33)[away].any()
            assert seen[:132].reshape(4, 33)[~away, :16].sum(axis=1).tolist() == [1.0] * sum(~away)
            seen_away += int(away.sum())
            if isinstance(sites, EventSites):
                there = np.flatnonzero(~away)
                view = sites._engines[e].site
                assert seen == pytest.approx(observe(layout, view, UNKNOWN, there, there))
    assert seen_away > 100


@pytest.mark.parametrize("options", [{}, {"late": "drop"}])
def test_a_state_is_gone_on_with_to_the_last_digit(options: dict[str, str]) -> None:
    control = site(3.0, 2.0, **options)
    whole, other = (sites_of(control, count=4, seed=seed) for seed in (1, 9))
    alike = np.full((4, 4), 0.25)
    for _ in range(10):
        whole.step(alike)
    other.restore(whole.state())
    for _ in range(10):
        whole.step(alike)
        other.step(alike)
    for name, array in whole.state().items():
        np.testing.assert_array_equal(array, other.state()[name], err_msg=name)
    assert sum(len(one) for one in whole.state().values()) > 0


def test_where_all_are_away_all_is_rejected() -> None:
    control = site(1e-3, 1e9)
    for sites in (SlottedSites(control, seed=1), EventSites(control, seed=1)):
        for _ in range(3):
            sites.step(np.full((1, 4), 0.25))
        sites.clear()
        for _ in range(20):
            sites.step(np.full((1, 4), 0.25))
        assert sites.counts.rejected.sum() == sites.counts.arrived.sum() > 0
