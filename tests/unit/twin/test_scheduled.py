"""Schedulers in the twin: when they are asked, what they see, and that the engine obeys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inferway.deployment import Batch, PolicySpec, ServiceTime
from inferway.deployment.workloads import MapArrivals, PhasedArrivals, constant
from inferway.scheduling import ForOneTask, Routing, Signal
from inferway.site import Fleet, Site
from inferway.twin import Scenario, SetOutage, run
from inferway.twin.engine import kinds_of
from inferway.twin.replication import replicate
from inferway.workload import PhaseCourse, stream

ONES = np.ones(2, np.int64)
BURSTY = MapArrivals.read(
    {"process": "map", "d0": [[-21, 1], [0.5, -4.5]], "d1": [[20, 0], [0, 4]]}
)


def site_of(arrivals: Any, **changes: Any) -> Scenario:
    fleet = Fleet(
        ("light", "heavy"), np.array([20.0, 5.0]), np.array([0.5, 1.0]), np.array([2, 2]), buffer=4
    )
    times = (ServiceTime("deterministic", 0.05), ServiceTime("deterministic", 0.2))
    return replace(
        Scenario(fleet, times, arrivals, policy="alias", deadline_s=0.5, late="serve"), **changes
    )


class Probe:
    """Writes down what it is shown, and routes by a function of the number of the decision."""

    def __init__(
        self, slot_s: float, route: Callable[[int], Routing], on_rejection: bool = False
    ) -> None:
        self.slot_s, self.on_rejection, self.sees_phase = slot_s, on_rejection, True
        self.route = route
        self.seen: list[tuple[float, Signal, list[int]]] = []

    def observe(self, site: Site, signal: Signal) -> int:
        self.seen.append((float(site.clock_s[0]), signal, site.queue.tolist()))
        return len(self.seen) - 1

    def act(self, observation: int) -> Routing:
        return self.route(observation)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a controller of the test's own into every scenario."""

    def install(controller: Probe) -> Probe:
        monkeypatch.setattr(Scenario, "controller", lambda self: ForOneTask(controller))
        return controller

    return install


def to(*servers: int) -> Routing:
    chosen = np.isin(np.arange(4), servers)
    return Routing(chosen / chosen.sum(), ONES, ONES)


def records_of(scenario: Scenario, queries: int, seed: int = 2) -> dict[str, np.ndarray]:
    kept: list[dict[str, np.ndarray]] = []

    def sink(_: int, rows: Any) -> None:
        kept.append({n: getattr(rows, n)[: rows.size[0]].copy() for n in rows._fields[:-1]})

    replicate(scenario, queries=queries, seed=seed, replication=0, warmup=0, sink=sink)
    return {name: np.concatenate([one[name] for one in kept]) for name in kept[0]}


def test_each_slot_has_its_routing(probe: Any) -> None:
    controller = probe(Probe(1.0, lambda number: to(number % 4)))
    arrivals = constant(3.9)
    rows = records_of(site_of(arrivals), 400)
    assert [seen[0] for seen in controller.seen[:50]] == list(range(50))
    # Decisions at 0, 1, 2, ... hold until the next; an arrival at the very time comes before.
    slot = np.maximum(np.ceil(rows["arrived_s"]) - 1, 0).astype(int)
    assert (rows["server"] == slot % 4).all()


def test_a_slot_is_seen_as_the_requests_before_it_left_it(probe: Any) -> None:
    controller = probe(Probe(0.25, lambda number: to(2)))
    rows = records_of(site_of(constant(4.9)), 300)
    for at_s, _, queue in controller.seen[1:200]:
        there = (rows["arrived_s"] <= at_s) & (rows["left_s"] > at_s) & (rows["server"] >= 0)
        assert queue == [0, 0, int(there.sum()), 0]


def test_the_phase_is_that_of_the_slots_start(probe: Any) -> None:
    controller = probe(Probe(0.1, lambda number: to(0, 1, 2, 3)))
    scenario = site_of(BURSTY)
    outcome = replicate(scenario, queries=20_000, seed=7, replication=0, warmup=0)
    times_s = np.array([seen[0] for seen in controller.seen])
    phases = np.array([seen[1].phase for seen in controller.seen])
    since_s = np.array([seen[1].since_s for seen in controller.seen])
    # Drawn once more: the phase at a time is that since the last switch before it.
    from inferway.site.draw import streams

    chunk = next(stream(scenario.arrivals, seed=int(streams(7, 0, 4)[3])))
    whole = times_s <= chunk.times_s[-1]
    assert whole.sum() > 1000
    at = np.searchsorted(chunk.switch_s, times_s[whole], side="right") - 1
    assert (phases[whole] == chunk.switch_to[at]).all()
    assert since_s[whole] == pytest.approx(times_s[whole] - chunk.switch_s[at])
    # Requests are counted by the phase in which they came: 20 a second, or 4.
    assert outcome.tally.arrived.sum() == 20_000
    assert outcome.tally.arrived / 20_000 == pytest.approx([20 / 28, 8 / 28], abs=0.05)


def test_periodic_phases_are_seen_too(probe: Any) -> None:
    written = [{"for": "1500 ms", "rate": "4/s"}, {"for": "700 ms", "rate": "20/s"}]
    arrivals = PhasedArrivals.read({"process": "phases", "phases": written})
    controller = probe(Probe(0.4, lambda number: to(0)))
    replicate(site_of(arrivals), queries=2000, seed=1, replication=0)
    times_s = np.array([seen[0] for seen in controller.seen])
    inside = np.abs(np.mod(times_s, 2.2)[:, None] - [0, 1.5, 2.2]).min(axis=1) > 1e-9
    phases = np.array([seen[1].phase for seen in controller.seen])
    course = PhaseCourse(arrivals)
    expected = np.array([course.at(time_s)[0] for time_s in times_s])
    assert (phases == expected)[inside].all()


def test_a_rejection_asks_again_at_once(probe: Any) -> None:
    controller = probe(
        Probe(1000.0, lambda number: to(2) if number == 0 else to(0, 1), on_rejection=True)
    )
    rows = records_of(site_of(constant(16)), 200)
    rejected = np.flatnonzero(rows["outcome"] == 3)
    assert len(rejected) == 1
    (_, _, _), (asked_s, _, queue) = controller.seen[:2]
    assert asked_s == rows["arrived_s"][rejected[0]]
    assert queue == [0, 0, 4, 0]
    after = rows["arrived_s"] > asked_s
    assert set(rows["server"][after]) == {0, 1}


def test_blocks_of_queries_change_nothing(probe: Any) -> None:
    scenario = site_of(BURSTY)

    def lefts(queries: int) -> np.ndarray:
        probe(Probe(0.1, lambda number: to(number % 4, 3)))
        rows = records_of(scenario, queries)
        order = np.argsort(rows["arrived_s"])
        return np.array([rows[name][order] for name in ("arrived_s", "left_s", "server")])

    # Runs of other lengths are cut into other blocks; all but the last requests are the same.
    one, other = lefts(3000), lefts(4013)
    assert (one[:, :2900] == other[:, :2900]).all()


def test_a_smaller_batch_starts_as_soon_as_it_is_allowed(probe: Any) -> None:
    sizes = (np.array([1, 3]), np.array([1, 3]))
    one = Routing(np.array([0, 0, 1.0, 0]), *sizes)
    then = Routing(np.array([1.0, 0, 0, 0]), ONES, ONES)
    probe(Probe(1.0, lambda number: one if number == 0 else then))
    batch = Batch((1, 3), (0.2, 0.3), 1, 3)
    scenario = site_of(constant(5), batches=(None, batch), deadline_s=None)
    rows = records_of(scenario, 20)
    heavy = rows["server"] == 2
    # At 0, 0.2 and 0.4 s three come and leave together; those of 0.6, 0.8 and 1 s too, at 1.3 s.
    assert rows["arrived_s"][heavy] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert rows["left_s"][heavy] == pytest.approx([0.7] * 3 + [1.3] * 3)
    # With two waiting at 0.9 s, a slot of 0.9 s lets them go one by one.
    probe(Probe(0.9, lambda number: one if number == 0 else then))
    rows = records_of(scenario, 20)
    heavy = rows["server"] == 2
    assert rows["left_s"][heavy] == pytest.approx([0.7] * 3 + [1.1, 1.3])


def test_what_is_left_goes_on_when_servers_fail() -> None:
    outage = SetOutage("heavy", 1, 100.0, 1000.0)
    scenario = site_of(constant(6), outages=(outage,))
    found = run(scenario.scheduled("hw"), queries=2000, warmup=0)
    assert found.dispatched["heavy"] == pytest.approx(1 - found.rejected)
    assert found.rejected > 0.05  # 6 a second are more than one serves


def test_results_tell_the_phases_of_a_map_apart() -> None:
    scenario = site_of(BURSTY)
    found = run(scenario.scheduled("sa", slot="100 ms"), queries=20_000)
    burst, calm = found.phases
    assert (burst.rate_per_s, calm.rate_per_s) == (20.0, 4.0)
    assert burst.dispatched["heavy"] < calm.dispatched["heavy"]
    assert burst.queries + calm.queries == found.queries
    document = found.to_json()
    assert document["phases"][0]["dispatched"] == burst.dispatched
    total = sum(phase.dispatched["heavy"] * phase.queries for phase in found.phases)
    assert document["dispatched"]["heavy"] == pytest.approx(total / found.queries)


@pytest.mark.parametrize("name", ["lw", "hw", "hw-e", "sq", "sa", "infaas", "hand"])
def test_every_rule_runs_and_gives_the_same_again(name: str) -> None:
    scenario = site_of(BURSTY).scheduled(name)
    assert "markov" not in kinds_of(scenario)
    one, other = (run(scenario, queries=3000, seed=4) for _ in range(2))
    assert one.to_json() | {"queries_per_cpu_s": 0} == other.to_json() | {"queries_per_cpu_s": 0}
    assert one.goodput + one.violation_ratio <= 1


def test_a_scheduler_that_lacks_something_says_so() -> None:
    with pytest.raises(ValueError, match="sa needs a deadline to keep"):
        run(site_of(BURSTY, deadline_s=None).scheduled("sa"), queries=10)
    with pytest.raises(ValueError, match="unknown scheduling policy 'x'"):
        run(site_of(BURSTY, scheduling=PolicySpec("x")), queries=10)
    with pytest.raises(ValueError, match="slot"):
        site_of(BURSTY).scheduled("sa", slot="0 s")
