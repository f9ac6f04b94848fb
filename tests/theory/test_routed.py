"""Slotted sites against the general engine, closed forms, and themselves continued."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slotted
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st
from slotted import arrivals_of, by_events, controls, decisions_for, in_slots, markovian
from systems import phases, poisson

from inferway.deployment import Batch, ServiceTime
from inferway.deployment.workloads import Arrivals, TraceArrivals
from inferway.learning.control import Control
from inferway.learning.site import SlottedSites
from inferway.scheduling.sa import later_than
from inferway.site import Fleet
from inferway.site.devices import DeviceSlots
from inferway.twin import Scenario

HERE = Path(__file__).parent
QUICK = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
seeds = st.integers(0, 2**31)
BURSTS = markovian([[-70.5, 0.5], [0.2, -10.2]], [[70.0, 0.0], [0.0, 10.0]])
ALONG = markovian([[-20.0, 1.0], [0.5, -2.0]], [[17.0, 2.0], [0.5, 1.0]])


def site(
    arrivals: Arrivals,
    *,
    service_s: tuple[float, ...] = (0.02, 0.08),
    distribution: str = "deterministic",
    buffer: int = 15,
    **options: object,
) -> Control:
    """Two servers of each class; options are the scenario's."""
    spread = 0.5 if distribution == "lognormal" else 0.0
    fleet = Fleet(
        variants=tuple("ab"[: len(service_s)]),
        rate=1 / np.array(service_s),
        accuracy=np.array([0.7, 0.8][: len(service_s)]),
        count=np.full(len(service_s), 2),
        buffer=buffer,
    )
    return Control(
        Scenario(
            fleet=fleet,
            service=tuple(ServiceTime(distribution, mean_s, cv=spread) for mean_s in service_s),
            arrivals=arrivals,
            policy=slotted.LISTED,
            folder=HERE,
            **{"late": "serve", "deadline_s": 0.3, **options},  # type: ignore[arg-type]
        )
    )


def batched(control: Control) -> Control:
    """The same with batches of one, whose times are known only when they begin."""
    times = control.scenario.service
    rules = tuple(Batch((1,), (time.mean_s,), 1, 1) for time in times)
    return replace(control, scenario=replace(control.scenario, batches=rules))


def run(
    control: Control, routing: list[float], *, count: int, slots: int, seed: int
) -> SlottedSites:
    """Many sites under one routing."""
    sites = SlottedSites(control, count=count, seed=seed)
    rows = np.tile(np.array(routing), (count, 1))
    for _ in range(slots):
        sites.step(rows)
    return sites


@QUICK
@given(controls(), seeds)
def test_general_engine_slot_by_slot(control: Control, seed: int) -> None:
    """Counts and observations; service takes always the same time, so nothing else is random."""
    note(str(control))
    decisions = decisions_for(control, 25, seed)
    pairs = zip(
        in_slots(control, seed, decisions), by_events(control, seed, decisions), strict=True
    )
    for number, (found, expected) in enumerate(pairs):
        assert found.counts == expected.counts, number
        np.testing.assert_allclose(
            found.observation, expected.observation, atol=1e-6, err_msg=str(number)
        )


@pytest.mark.parametrize("distribution", ["lognormal", "exponential"])
@pytest.mark.parametrize("arrivals", [BURSTS, phases((3, 70, None), (2, 10, None))])
@pytest.mark.parametrize("late", ["serve", "drop"])
def test_general_engine_in_the_mean(distribution: str, arrivals: Arrivals, late: str) -> None:
    """The same requests at the same servers, which draw other service times."""
    offer = Batch((1, 3), (0.02, 0.03), 1, 3)
    for batches in ((), (offer, None)):
        control = site(arrivals, distribution=distribution, late=late, batches=batches)
        rows = []
        for seed in range(16):
            decisions = decisions_for(control, 40, seed)
            *_, found = in_slots(control, seed, decisions)
            *_, expected = by_events(control, seed, decisions)
            assert found.counts["arrived"] == expected.counts["arrived"]
            rows.append([figures(found), figures(expected)])
        gaps = np.subtract(*np.swapaxes(rows, 0, 1))
        spread = gaps.std(axis=0, ddof=1) / math.sqrt(len(gaps))
        assert (np.abs(gaps.mean(axis=0)) <= 4 * spread + 1e-9).all(), (gaps.mean(axis=0), spread)
        assert (spread < 0.02).all()  # it would tell


def figures(slot: slotted.Slot) -> list[float]:
    """Goodput, late, rejected and dropped per request."""
    counts = {name: np.array(of) for name, of in slot.counts.items()}
    timely = (counts["answered"] - counts["late"]).sum(axis=0)
    lost = [counts[name].sum() for name in ("late", "rejected", "dropped")]
    return [float(of / counts["arrived"].sum()) for of in (timely @ [0.7, 0.8], *lost)]


@pytest.mark.parametrize("change", [lambda control: control, batched])
def test_one_server_is_the_m_m_1_queue_with_c_places(change: object) -> None:
    """Rejected and late shares: with j before it, a request takes j + 1 exponential times."""
    control = site(
        poisson(9.0), service_s=(0.1,), distribution="exponential", buffer=6, deadline_s=0.35
    )
    sites = run(change(control), [1.0, 0.0], count=64, slots=3000, seed=3)  # type: ignore[operator]
    counts = sites.counts
    share = 0.9 ** np.arange(7)
    share /= share.sum()
    assert counts.rejected.sum() / counts.arrived.sum() == pytest.approx(share[6], rel=0.01)
    poisson_ = [math.exp(-3.5) * 3.5**j / math.factorial(j) for j in range(6)]
    late = float(share[:6] @ np.cumsum(poisson_) / share[:6].sum())
    answered = counts.answered.sum(axis=(0, 1, 2))
    assert answered[1] / answered.sum() == pytest.approx(late, rel=0.01)


@pytest.mark.parametrize("change", [lambda control: control, batched])
def test_split_by_chance_it_is_two_m_d_1_queues(change: object) -> None:
    control = site(poisson(10.0), service_s=(0.1, 0.15), buffer=127, deadline_s=0.33)
    routing = [0.7, 0.0, 0.0, 0.3]
    sites = run(change(control), routing, count=64, slots=3000, seed=4)  # type: ignore[operator]
    assert sites.counts.rejected.sum() == 0
    answered = sites.counts.answered.sum(axis=(0, 1))
    for k, (rate_per_s, service_s) in enumerate([(7.0, 0.1), (3.0, 0.15)]):
        expected = later_than(0.33 - service_s, rate_per_s, service_s)
        assert answered[k, 1] / answered[k].sum() == pytest.approx(expected, rel=0.015)


def test_rewards_are_those_of_what_was_counted() -> None:
    base = site(BURSTS, deadline_s=0.15, buffer=4)
    for of in (base, batched(base)):
        control = replace(of, rejected_weight=0.5, accuracy_weight=2.0, gains=(0.6, 0.9))
        sites = SlottedSites(control, count=3, seed=8)
        total, noted = np.zeros(3), np.zeros((3, 5))
        for _ in range(60):
            total += sites.step(np.tile([0.3, 0.3, 0.2, 0.2], (3, 1)))
            noted += np.column_stack(sites.outcomes)
        answered = sites.counts.answered.sum(axis=1)
        lost = sites.counts.rejected.sum(axis=1)
        assert (lost > 0).all()
        assert (answered[..., 1].sum(axis=1) > 0).all()
        expected = 2.0 * answered[..., 0] @ [0.6, 0.9] - answered[..., 1].sum(axis=1) - 0.5 * lost
        np.testing.assert_allclose(total, expected, rtol=1e-9)
        late = answered[..., 1].sum(axis=1)
        every = [sites.counts.arrived.sum(axis=1), lost, late, answered[..., 0]]
        assert noted.tolist() == np.column_stack(every).tolist()


def test_arrivals_of_a_map_have_its_rate_and_correlation() -> None:
    control = site(ALONG)
    d0, d1 = np.array(ALONG.d0), np.array(ALONG.d1)
    times_s, came, _ = arrivals_of(control, 5, 5_000.0)
    gaps = np.diff(times_s)
    m = np.linalg.inv(-d0)
    jump = m @ d1
    start = np.linalg.svd((jump - np.eye(2)).T)[2][-1]
    start /= start.sum()
    mean = start @ m @ np.ones(2)
    correlation = (start @ m @ jump @ m @ np.ones(2) - mean**2) / (
        2 * start @ m @ m @ np.ones(2) - mean**2
    )
    assert correlation > 0.1
    assert gaps.mean() == pytest.approx(mean, rel=0.03)
    assert np.corrcoef(gaps[:-1], gaps[1:])[0, 1] == pytest.approx(correlation, abs=0.02)
    # The phase in which a request comes, not the one that it brings.
    by_phase = ALONG.stationary * d1.sum(axis=1)
    assert np.mean(came == 0) == pytest.approx(by_phase[0] / by_phase.sum(), abs=0.01)


def test_a_site_begins_somewhere_in_the_long_run() -> None:
    sites = SlottedSites(site(ALONG), count=3000, seed=6)
    assert np.mean(sites.phase == 0) == pytest.approx(ALONG.stationary[0], abs=0.03)
    periodic = SlottedSites(site(phases((3, 70, None), (1, 10, None))), count=3000, seed=6)
    assert np.mean(periodic.phase == 0) == pytest.approx(0.75, abs=0.03)


@pytest.fixture
def trace(tmp_path: Path) -> TraceArrivals:
    """Four requests within 3 s, so that the next round begins at 4 s."""
    file = tmp_path / "trace.csv"
    file.write_text("time\n10\n10.5\n11.25\n13\n")
    return TraceArrivals.read({"process": "trace", "file": str(file)})


def test_a_trace_goes_round(trace: TraceArrivals) -> None:
    control = replace(site(trace), slot_s=0.5)
    sites = SlottedSites(control, count=40, seed=2)
    found = []
    for _ in range(24):
        sites.step(np.full((40, 4), 0.25))
        found.append(sites.arrivals.copy())
    # At 0, 0.5, 1.25 and 3, and again from 4 on; what falls on a slot's end belongs to it.
    first, again = [2, 0, 1, 0, 0, 1, 0, 1], [1, 0, 1, 0, 0, 1, 0, 1]
    assert [row[0] for row in found] == [*first, *again, *again]
    assert (np.abs(np.sum(found, axis=0)[1:] - 12) <= 1).all()
    assert len({tuple(column) for column in np.transpose(found)}) > 4  # others begin elsewhere


@pytest.mark.parametrize("late", ["serve", "drop"])
@pytest.mark.parametrize("kind", ["map", "along", "phases", "trace"])
def test_it_goes_on_where_its_state_was_taken(kind: str, late: str, trace: TraceArrivals) -> None:
    arrivals = {
        "map": BURSTS,
        "along": ALONG,
        "phases": phases((3, 70, None), (1, 10, None)),
        "trace": trace,
    }[kind]
    control = replace(site(arrivals, distribution="lognormal", late=late), sees_phase=True)
    one, other = SlottedSites(control, count=3, seed=1), SlottedSites(control, count=3, seed=2)
    routing = np.tile([0.2, 0.2, 0.3, 0.3], (3, 1))
    for _ in range(25):
        one.step(routing)
    state = one.state()
    expected = [course(one, routing) for _ in range(20)]
    other.restore(state)
    assert [course(other, routing) for _ in range(20)] == expected
    with pytest.raises(ValueError, match="not one of 2 such sites"):
        SlottedSites(control, count=2).restore(state)


def course(sites: SlottedSites, routing: np.ndarray) -> Any:
    """All that a slot shows."""
    sites.step(routing)
    shown = (sites.rewards, sites.observation, sites.clock_s, *sites.counts, *sites.outcomes)
    return np.concatenate([array.ravel() for array in shown]).tolist()


def test_a_site_is_the_same_among_however_many() -> None:
    control = site(BURSTS, distribution="lognormal")
    few, many = SlottedSites(control, count=2, seed=9), SlottedSites(control, count=7, seed=9)
    for _ in range(40):
        few.step(np.tile([0.2, 0.2, 0.3, 0.3], (2, 1)))
        many.step(np.tile([0.2, 0.2, 0.3, 0.3], (7, 1)))
        assert few.observation.tolist() == many.observation[:2].tolist()
        assert few.rewards.tolist() == many.rewards[:2].tolist()
    assert few.rewards[0] != few.rewards[1]
    many.restart(9)
    assert many.clock_s.tolist() == [0.0] * 7
    again = SlottedSites(control, count=2, seed=9)
    many.step(np.tile([0.2, 0.2, 0.3, 0.3], (7, 1)))
    again.step(np.tile([0.2, 0.2, 0.3, 0.3], (2, 1)))
    assert many.observation[1].tolist() == again.observation[1].tolist()


def numbers() -> list[Any]:
    """A few slots of sites of all kinds."""
    found: list[Any] = []
    offer = Batch((1, 3), (0.02, 0.03), 1, 3)
    for arrivals in (BURSTS, ALONG, phases((3, 70, None), (1, 10, None))):
        for late, batches in (("serve", ()), ("drop", ()), ("serve", (offer, None))):
            control = site(arrivals, distribution="lognormal", late=late, batches=batches)
            sites = SlottedSites(control, count=2, seed=4)
            found += [course(sites, np.tile([0.2, 0.2, 0.3, 0.3], (2, 1))) for _ in range(6)]
    return found


def one_core(classes: int) -> DeviceSlots:
    """Make a device of one core that all classes share."""
    one = np.ones(classes, np.int64)
    flag = np.zeros(1, np.bool_)
    return DeviceSlots(("cpu",), one[:1], flag, np.zeros(1), 0 * one, one)


def test_what_slots_cannot_run_is_refused() -> None:
    control = site(BURSTS)
    scenario = control.scenario
    cases = {
        "limited buffer": replace(scenario, fleet=replace(scenario.fleet, buffer=None)),
        "no central queue": replace(scenario, queue="central"),
        "shorter than the fastest": replace(scenario, deadline_s=0.01),
    }
    for message, wrong in cases.items():
        with pytest.raises(ValueError, match=message):
            replace(control, scenario=wrong)
    shared = replace(scenario.fleet, devices=one_core(len(scenario.fleet.rate)))
    with pytest.raises(ValueError, match="share devices at sites that run by events"):
        SlottedSites(replace(control, scenario=replace(scenario, fleet=shared)))
    with pytest.raises(ValueError, match="longer than 0 s"):
        replace(control, slot_s=0.0)
    with pytest.raises(ValueError, match=r"2 accuracies in 0\.\.1"):
        replace(control, gains=(0.5, 1.5))
    with pytest.raises(ValueError, match="no batch sizes to choose"):
        replace(control, batches=True)
