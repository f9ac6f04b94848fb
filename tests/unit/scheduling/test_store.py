"""Policies by the servers that are left, and the scheduling table around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.deployment import Batch, ServiceTime
from inferway.deployment.policies import spec_of
from inferway.deployment.workloads import PoissonArrivals
from inferway.dispatch import Dispatcher
from inferway.scheduling import UNKNOWN, Conditions, Signal, controller_of, steer
from inferway.scheduling.neural_policy import packed, read
from inferway.scheduling.observation import observe
from inferway.scheduling.store import routings_of
from inferway.site import Fleet
from inferway.twin.engine import engine_of
from inferway.twin.scenario import Scenario, SetOutage
from inferway.workload import Span

Export = Callable[..., Path]
BURSTS = (Span(0, 0.0, np.inf, 180.0, None), Span(1, 0.0, np.inf, 10.0, None))


def made(place: Path, fleet: Fleet, policy: str = "rl-po", **conditions: Any) -> Any:
    spec = spec_of("scheduling", policy, checkpoint=place)
    return controller_of(spec, [Conditions(fleet, 0.3, **conditions)])


def decide(controller: Any, site: Any, signal: Signal = UNKNOWN) -> Any:
    (routing,) = controller.decide([site], [signal])
    return routing


def test_a_file_decides_for_the_whole_fleet(export: Export, fleet: Fleet) -> None:
    path = export()
    controller, site = made(path, fleet), Dispatcher(fleet, "steered", target=None)
    site.arrive(0.0, 5)
    found = decide(controller, site.site)
    network = read(path)
    seen = observe(network.about.layout, site.site, UNKNOWN)
    (expected,) = routings_of(network, network.forward(seen))
    assert found.probabilities.tolist() == expected.probabilities.tolist()
    assert (controller.slot_s, controller.sees_phase, controller.on_rejection) == (1, False, False)


def test_the_policy_of_the_servers_that_are_left_takes_over(export: Export, fleet: Fleet) -> None:
    export("store/all.npz")
    folder = export("store/one-heavy.npz", counts=(2, 1), seed=2).parent
    controller, site = made(folder, fleet), Dispatcher(fleet, "steered", target=None)

    def decide_now() -> Any:
        routing = decide(controller, site.site)
        steer(site.policy, routing)
        return routing

    whole = decide_now().probabilities
    assert site.policy.probabilities.tolist() == pytest.approx(whole.tolist())
    site.mark(2, False, 1.0)
    part = decide_now().probabilities
    assert part[2] == 0.0
    network = read(folder / "one-heavy.npz")
    seen = observe(network.about.layout, site.site, UNKNOWN, np.array([0, 1, 3]))
    (said,) = routings_of(network, network.forward(seen))
    assert part[[0, 1, 3]].tolist() == said.probabilities.tolist()
    assert site.policy.steered[0] == 1
    # Without a light server too, there is none: each request goes where it is in time.
    site.mark(0, False, 2.0)
    assert decide_now() is None
    assert site.policy.steered[0] == 0
    assert [site.arrive(3.0, word, 3.2) for word in range(5)] == [3, 3, 3, 3, 1]
    for server in (0, 2):
        site.mark(server, True, 4.0)
    decide_now()
    assert site.policy.probabilities[2] > 0.0


def test_packed_policies_are_in_a_store_as_well(export: Export, fleet: Fleet) -> None:
    plain = export("store/all.npz")
    (plain.parent / "packed.npz.xz").write_bytes(
        packed(export("one-heavy.npz", counts=(2, 1), seed=2))
    )
    controller, site = made(plain.parent, fleet), Dispatcher(fleet, "steered", target=None)
    site.mark(2, False, 1.0)
    routing = decide(controller, site.site)
    assert routing is not None
    assert routing.probabilities[2] == 0.0
    plain.unlink()
    assert made(plain.parent, fleet)


ANY = ((600.0, 60.0), (600.0, 60.0))
"""Mean times of a policy that was trained with servers that come and go, by class, s."""


def test_one_policy_decides_for_any_servers_that_are_left(export: Export, fleet: Fleet) -> None:
    path = export(outages=ANY)
    controller, site = made(path, fleet), Dispatcher(fleet, "steered", target=None)
    network = read(path)
    layout = network.about.layout
    for away in ((), (2,), (2, 0), (2, 0, 1), (1,), (3, 2)):
        for server in range(4):
            site.mark(server, server not in away, 1.0)
        routing = decide(controller, site.site)
        steer(site.policy, routing)
        assert site.policy.steered[0] == 1
        there = [server for server in range(4) if server not in away]
        assert np.flatnonzero(routing.probabilities).tolist() == there
        # As the network says it, told who is there, and the rest of its numbers left out.
        seen = np.zeros(layout.size, np.float32)
        seen[[33 * server for server in there]] = 1.0  # an empty queue
        seen[[4 * 33 + server for server in there]] = 1.0
        outputs = network.forward(seen)[there].astype(float)
        expected = np.exp(outputs) / np.exp(outputs).sum()
        assert routing.probabilities[there] == pytest.approx(expected, rel=1e-5)
    for server in range(4):
        site.mark(server, False, 2.0)
    assert decide(controller, site.site) is None


def test_the_policy_for_just_these_servers_goes_before_one_for_any(
    export: Export, fleet: Fleet
) -> None:
    folder = export("store/any.npz", outages=ANY).parent
    export("store/one-heavy.npz", counts=(2, 1), seed=2)
    controller, site = made(folder, fleet), Dispatcher(fleet, "steered", target=None)
    alone = made(folder / "any.npz", fleet)

    def both() -> tuple[list[float], list[float]]:
        found, other = (decide(one, site.site) for one in (controller, alone))
        return found.probabilities.tolist(), other.probabilities.tolist()

    found, any_part = both()
    assert found == any_part
    site.mark(3, False, 1.0)
    found, any_part = both()
    assert found != any_part
    site.mark(2, False, 1.0)
    found, any_part = both()
    assert found == any_part
    # Of two for any part, the one of fewer servers; they are told apart from each other.
    export("store/few.npz", counts=(2, 1), outages=ANY, seed=3)
    fewer = made(folder, fleet)
    assert decide(fewer, site.site).probabilities.tolist() != any_part


def test_a_policy_for_any_part_serves_a_smaller_fleet_and_no_larger_one(
    export: Export, fleet: Fleet
) -> None:
    path = export(outages=ANY)
    part = replace(
        fleet,
        variants=("heavy",),
        rate=fleet.rate[1:],
        accuracy=fleet.accuracy[1:],
        count=np.array([1]),
        graded=fleet.graded[1:],
        price=None,
        energy=np.empty(0),
    )
    site = Dispatcher(part, "steered", target=None)
    controller = made(path, part)
    assert decide(controller, site.site).probabilities.tolist() == [1.0]
    more = replace(fleet, count=np.array([2, 3]))
    with pytest.raises(
        ValueError, match="for 2 light and 2 heavy or fewer of each, not for 2 light and 3 heavy"
    ):
        made(path, more)
    # Where placement gives and takes servers, more than it knows are left to `deadline`.
    site, controller = Dispatcher(more, "steered", target=None), made(path, more, changing=True)
    assert decide(controller, site.site) is None
    site.mark(2, False, 1.0)
    part_of = decide(controller, site.site).probabilities
    assert np.flatnonzero(part_of).tolist() == [0, 1, 3, 4]
    # One for a set of its own waits for that, too.
    exact = made(export("exact.npz"), more, changing=True)
    assert decide(exact, site.site) is not None
    site.mark(2, True, 1.0)
    assert decide(exact, site.site) is None


def test_the_twin_runs_it_through_outages(export: Export, fleet: Fleet) -> None:
    away = (SetOutage("heavy", 2, 3.0, 6.0), SetOutage("light", 1, 6.0, 6.0))
    site = Scenario(
        fleet=fleet,
        service=tuple(ServiceTime("deterministic", 1 / rate) for rate in fleet.rate.tolist()),
        arrivals=PoissonArrivals.read({"process": "poisson", "rate": "60/s"}),
        deadline_s=0.3,
        late="serve",
        outages=away,
    ).scheduled("rl-po", checkpoint=export(outages=ANY))
    engine = engine_of(site, seed=2, kind="general")
    sets = set()
    for second in range(14):
        engine.reroute()
        healthy, routing = engine.site.healthy, engine.policy.probabilities
        assert engine.policy.steered[0] == 1
        assert (routing[~healthy] == 0.0).all()
        assert (routing[healthy] > 0.0).all()
        sets.add(tuple(healthy.tolist()))
        engine.advance(10_000, second + 1.5)
    assert len(sets) == 4


def test_batches_of_a_policy_for_any_part(export: Export, fleet: Fleet) -> None:
    sizes = ((1, 3, 5), (1, 3, 5))
    path = export(policy="rl-po-b", batch_sizes=sizes, outages=ANY)
    offered = Batch((1, 3, 5), (0.0107, 0.02, 0.03), 1, 5)
    controller = made(path, fleet, "rl-po-b", batches=(offered, offered))
    site = Dispatcher(fleet, "steered", target=None)
    site.mark(0, False, 1.0)
    routing = decide(controller, site.site)
    network, there = read(path), np.array([1, 2, 3])
    seen = observe(network.about.layout, site.site, UNKNOWN, there, there)
    # Queues, batches in service, then who is there.
    assert seen[4 * 33 + 4 :].tolist() == [0.0, 1.0, 1.0, 1.0]
    (said,) = routings_of(network, network.forward(seen))
    assert routing.smallest.tolist() == said.smallest.tolist()
    assert routing.largest.tolist() == said.largest.tolist()


def test_a_store_may_have_policies_of_one_variant_alone(export: Export, fleet: Fleet) -> None:
    heavy = {"variants": ("heavy",), "accuracies": (0.8278,), "service_s": (0.0429,)}
    folder = export("store/heavy.npz", counts=(2,), **heavy).parent
    controller, site = made(folder, fleet), Dispatcher(fleet, "steered", target=None)
    for server in (0, 1):
        site.mark(server, False, 1.0)
    routing = decide(controller, site.site)
    assert np.flatnonzero(routing.probabilities).tolist() == [2, 3]


def test_a_store_is_checked_as_a_whole(export: Export, fleet: Fleet, tmp_path: Path) -> None:
    folder = export("store/a.npz", counts=(1, 2)).parent
    made(folder, fleet)
    export("store/b.npz", counts=(1, 2))
    with pytest.raises(ValueError, match=r"b\.npz and .*a\.npz were trained for the same servers"):
        made(folder, fleet)
    export("store/b.npz", counts=(3, 2))
    with pytest.raises(ValueError, match="for 3 light and 2 heavy, not for 2 light and 2 heavy"):
        made(folder, fleet)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"there is no \.npz or \.npz\.xz file in it"):
        made(tmp_path / "empty", fleet)


def test_the_workloads_state_must_be_there_to_see(export: Export, fleet: Fleet) -> None:
    path = export(policy="rl-fo", phases=2)
    controller = made(path, fleet, "rl-fo", phases=BURSTS)
    assert controller.sees_phase
    site = Dispatcher(fleet, "steered", target=None).site
    one, other = (decide(controller, site, Signal(phase, 0.0)).probabilities for phase in (0, 1))
    assert np.abs(one - other).max() > 1e-3
    with pytest.raises(ValueError, match="which a live server cannot see"):
        made(path, fleet, "rl-fo")
    with pytest.raises(ValueError, match="of 2 random phases; this one has 2 periodic ones"):
        made(path, fleet, "rl-fo", phases=BURSTS, periodic=True)


def test_batches_must_be_those_that_are_offered(export: Export, fleet: Fleet) -> None:
    path = export(policy="rl-po-b", batch_sizes=((1, 3, 5), (1, 3, 5)))
    offered = Batch((1, 3, 5), (0.0107, 0.02, 0.03), 1, 5)
    controller = made(path, fleet, "rl-po-b", batches=(offered, offered))
    site = Dispatcher(fleet, "steered", target=None)
    steer(site.policy, decide(controller, site.site))
    assert {*site.policy.smallest, *site.policy.largest} <= {1, 3, 5}
    with pytest.raises(
        ValueError, match=r"batches of 1, 3, 5 at heavy, which serves batches of 1$"
    ):
        made(path, fleet, "rl-po-b", batches=(offered, None))
