"""Measured delays: nodes that know their own links and copies decide as one who knows all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import naive_placement as naive
import numpy as np
import pytest

from inferway.network.delivery import DeliveryNetwork
from inferway.placement import Observation, build_policy, serve
from inferway.placement.agent import Counters
from inferway.placement.delays import Measured, MeasuredDelays, Sojourns
from inferway.placement.layout import data_of
from inferway.placement.letters import Floor, decode
from inferway.placement.local import local_policy
from inferway.placement.waiting import queued

SLOTS = 6


def some_network(seed: int) -> DeliveryNetwork:
    return naive.random_network(seed, nodes=6, tasks=2, types=8, copies=2, every_pair=True)


def deliver(nodes: list[Any], letters: list[Any]) -> None:
    while letters:
        letter = letters.pop(0)
        letters += nodes[letter.to].receive(letter.data)


def changed(
    network: DeliveryNetwork, more_ms: Mapping[int, float], links: float = 1.0
) -> DeliveryNetwork:
    """A network whose links take so many times as long, and whose nodes so much longer."""
    paths, options, requests = network.paths, network.options, network.requests
    per_type = np.diff(options.first)
    start = np.repeat(paths.first[requests.path], per_type)
    away_s = paths.rtt_s[start + options.hop]
    cost = options.cost + 1000.0 * (links - 1.0) * away_s
    cost = cost + np.array([more_ms.get(int(v), 0.0) for v in options.node])
    order = np.lexsort((cost, np.repeat(np.arange(len(per_type)), per_type)))
    rows = {
        name: getattr(options, name)[order]
        for name in ("node", "model", "pair", "hop", "repository")
    }
    return replace(
        network,
        paths=paths._replace(rtt_s=links * paths.rtt_s),
        options=options._replace(cost=cost[order], **rows),
    )


def as_measured(
    network: DeliveryNetwork, more_ms: Mapping[int, float], links: float = 1.0
) -> list[Measured]:
    """What nodes of a network measure that has `changed` so."""
    found = []
    for data in data_of(network):
        names = zip(data.layout.task[data.layout.model].tolist(), data.variants, strict=True)
        more_s = 1e-3 * more_ms.get(data.node, 0.0)
        sojourns = {
            name: Sojourns(1.0, delay_s + more_s, 0.0, 0.0)
            for name, delay_s in zip(names, data.delay_s.tolist(), strict=True)
        }
        found.append(Measured(0.1, sojourns, {v: links * s for v, s in data.links_s.items()}))
    return found


def course(network: DeliveryNetwork, nodes: list[Any], told: list[Measured] | None) -> Any:
    """What nodes run, slot by slot, and what they have said of Above's kind at last."""
    deliver(nodes, [letter for node in nodes for letter in node.open()])
    allocations = []
    for slot in range(1, SLOTS + 1):
        requests = naive.batch(network, slot)
        load = serve(network, requests, np.concatenate([node.x for node in nodes]))
        letters = []
        if told is not None:
            for node, one in zip(nodes, told, strict=True):
                letters += node.measure(one)
        deliver(nodes, letters)
        letters = []
        for node, data in zip(nodes, data_of(network), strict=True):
            letters += node.close_slot(*told_of(data, requests, load), slot=slot)
        deliver(nodes, letters)
        for node in sorted(nodes, key=lambda one: one.stage):
            deliver(nodes, node.decide())
        deliver(nodes, [letter for node in nodes for letter in node.step()])
        allocations.append(np.concatenate([node.x for node in nodes]))
    return allocations


def told_of(data: Any, requests: Any, load: Any) -> tuple[Any, Any, Any]:
    """What a node counted itself."""
    arrived, served = data.measured(requests, load)
    return arrived, {}, served


def parts(network: DeliveryNetwork, name: str, delays: str, **options: Any) -> list[Any]:
    return [
        local_policy(name, network, node, seed=2, delays=delays, **options)
        for node in range(len(network.nodes))
    ]


@pytest.mark.parametrize("seed", [0, 1, 3])  # Where the change makes a difference
@pytest.mark.parametrize(
    ("name", "options"), [("exchange", {}), ("exchange", {"waiting": True}), ("infida", {})]
)
def test_who_measures_decides_as_who_was_told_by_the_file(
    seed: int, name: str, options: dict[str, Any]
) -> None:
    network = some_network(seed)
    more_ms = {1: 4.0, 3: 9.0}
    real = changed(network, more_ms, links=3.0)
    nodes = parts(network, name, "measured", **options)
    truth = parts(real, name, "file", **options)
    found = course(network, nodes, as_measured(network, more_ms, links=3.0))
    # The network that was told serves what it runs by other ranks; both are given the same loads.
    wanted = course_like(network, real, truth, found)
    assert np.array_equal(found, wanted)
    assert not np.array_equal(found, course(network, parts(network, name, "file", **options), None))


def course_like(
    network: DeliveryNetwork, real: DeliveryNetwork, nodes: list[Any], like: list[Any]
) -> list[Any]:
    """Have nodes of the real network decide about what came to those of the other one."""
    deliver(nodes, [letter for node in nodes for letter in node.open()])
    order = rank_of(network, real)
    allocations, runs = [], np.concatenate([node.x for node in nodes])
    for slot in range(1, SLOTS + 1):
        requests = naive.batch(network, slot)
        load = serve(network, requests, runs)[order]
        letters = []
        for node, data in zip(nodes, data_of(real), strict=True):
            letters += node.close_slot(*told_of(data, requests, load), slot=slot)
        deliver(nodes, letters)
        for node in sorted(nodes, key=lambda one: one.stage):
            deliver(nodes, node.decide())
        deliver(nodes, [letter for node in nodes for letter in node.step()])
        runs = like[slot - 1]
        allocations.append(np.concatenate([node.x for node in nodes]))
    return allocations


def rank_of(network: DeliveryNetwork, real: DeliveryNetwork) -> Any:
    """(O,) of each option of the real network, which it is in the other one."""

    def keys(one: DeliveryNetwork) -> list[tuple[int, int]]:
        kind = np.repeat(np.arange(len(one.options.first) - 1), np.diff(one.options.first))
        return list(zip(kind.tolist(), one.options.pair.tolist(), strict=True))

    place = {key: k for k, key in enumerate(keys(network))}
    return np.array([place[key] for key in keys(real)])


@pytest.mark.parametrize("delays", ["measured", "sojourns"])
@pytest.mark.parametrize("name", ["exchange", "infida"])
def test_the_whole_network_s_policy_decides_as_its_nodes(name: str, delays: str) -> None:
    network = some_network(1)
    told = as_measured(network, {1: 4.0, 2: -1.0, 3: 9.0})
    told = [
        one._replace(
            sojourns={
                name: took._replace(wait_s=0.3 * v if name[1].endswith("1") else 0.0, busy_s=0.05)
                for name, took in one.sojourns.items()
            }
        )
        for v, one in enumerate(told)
    ]
    nodes = course(network, parts(network, name, delays), told)
    whole: Any = build_policy(name, network, seed=2, delays=delays)
    for slot in range(1, SLOTS + 1):
        requests = naive.batch(network, slot)
        load = serve(network, requests, whole.allocation)
        whole.measure(told)
        assert np.array_equal(whole.step(Observation(requests, load)), nodes[slot - 1])
    other = "sojourns" if delays == "measured" else "measured"
    assert not np.array_equal(nodes, course(network, parts(network, name, other), told))


def busy_node(network: DeliveryNetwork) -> Any:
    """A node below the repository that requests cross in both directions."""
    return next(
        one
        for one in data_of(network)
        if any(each.upstream is not None for each in one.crossings.values())
        and any(each.downstream is not None for each in one.crossings.values())
        and len(set(one.variants)) > 1
    )


def test_means_follow_what_is_measured_and_waits_fade() -> None:
    data = busy_node(some_network(1))
    own = MeasuredDelays(data, waits=True)
    assert not own.own_ms().any()
    assert own.scale == 1.0
    neighbor = next(iter(data.links_s))
    assert own.link_ms(neighbor) == own.link_ms(None) == 0.0
    name, other = own.names[:2]
    file_s = own.file_s[0]
    x = np.zeros(len(data.variants), np.uint8)
    of_it = [p for p, k in enumerate(own._of) if k == 0]
    x[of_it[0]] = 1
    links_s = {neighbor: data.links_s[neighbor] + 0.25, 999: 1.0}
    took = Sojourns(10.0, 10 * 2 * file_s, 10 * 0.04, 1.2)
    own.take(Measured(2.0, {name: took}, links_s), x)
    assert own.link_ms(neighbor) == pytest.approx(250.0)
    assert own.link_ms(999) == 0.0
    # The first mean counts whole, and half of a wait at ten requests is a quarter.
    assert own.service_s[0] == pytest.approx(2 * file_s)
    assert own.wait_s[0] == pytest.approx(0.01)
    # What was not measured is as much slower than its profile.
    ms = own.own_ms(waits=False)
    assert ms == pytest.approx(1000.0 * own.file_s[own._of])
    assert own.own_ms()[of_it] == pytest.approx(ms[of_it] + 10.0)
    assert own.names.index(other) == 1
    # Of one copy that was busy three fifths of the time .45 requests wait as foreseen, and .2 did.
    foreseen = queued(0.6, max(1, int(np.ceil(data.layout.pinned[of_it]).sum())))
    assert own.scale == pytest.approx((0.5 * 0.2 + 0.2) / (0.5 * foreseen + 0.2))
    own.take(Measured(2.0, {}, {}), x)
    assert own.wait_s[0] == pytest.approx(0.005)
    assert own.service_s[0] == pytest.approx(2 * file_s)
    own.take(Measured(2.0, {name: Sojourns(1e6, 1e6 * file_s, 0.0, 1.0)}, {}), x)
    assert own.service_s[0] == pytest.approx(1.5 * file_s, rel=1e-4)
    for _ in range(9):
        own.take(Measured(2.0, {name: Sojourns(10.0, file_s, 1e6, 1.2)}, {}), x)
    assert own.scale == 10.0


@pytest.mark.parametrize("name", ["exchange", "infida"])
def test_a_node_goes_on_with_its_delays(name: str) -> None:
    network = some_network(1)
    told = as_measured(network, {1: 4.0, 3: 9.0}, links=3.0)
    nodes = parts(network, name, "measured")
    course(network, nodes, told)
    again = parts(network, name, "measured")
    for old, new in zip(nodes, again, strict=True):
        new.restore(old.state, closed=SLOTS, counters=old.counters)
        assert new.delays.saved[0] == old.delays.saved[0]
        assert np.array_equal(new.delays.saved[1], old.delays.saved[1])
        for rho, crossing in old.data.crossings.items():
            assert np.array_equal(new.data.crossings[rho].cost, crossing.cost)
            assert crossing.upstream is None or new._link_ms(crossing) > 0.0
    # The same where other policies ran before or run now, and what is damaged is said.
    of, values = nodes[1].counters
    parts(network, name, "file")[1].restore(nodes[1].state, counters=nodes[1].counters)
    assert parts(network, name, "file")[1].counters is None
    counting = local_policy("olag", network, 1)
    counting.restore(nodes[1].state, counters=nodes[1].counters)
    assert counting.counters is not None
    assert not counting.counters.counts.any()
    again[1].restore(nodes[1].state, counters=counting.counters)
    assert np.array_equal(again[1].delays.saved[1], values)
    with pytest.raises(ValueError, match="a delay was saved that is below 0 or no number"):
        again[1].restore(nodes[1].state, counters=Counters(of, -1.0 - values))


@pytest.mark.parametrize("name", ["exchange", "infida"])
def test_least_costs_are_told_again_once_they_have_changed(name: str) -> None:
    network = some_network(1)
    nodes = parts(network, name, "measured")
    deliver(nodes, [letter for node in nodes for letter in node.open()])
    data = busy_node(network)
    node = nodes[data.node]
    sent = dict(node._floor_sent)
    same = as_measured(network, {})[data.node]
    assert parts(network, name, "measured")[data.node].measure(same) == []
    more = as_measured(network, {data.node: 5.0}, links=4.0)[data.node]
    told = {}
    for letter in node.measure(more):
        message = decode(letter.data)
        assert isinstance(message, Floor)
        told[message.rho] = message.cost
    assert told
    for rho, cost in told.items():
        assert cost == pytest.approx(node._floor[rho], abs=1e-6) or cost == node._own_floor[rho]
        assert cost > sent[rho]
    assert node.measure(more) == []


@pytest.mark.parametrize("name", ["exchange", "infida"])
def test_delays_that_there_are_not_are_refused(name: str) -> None:
    network = some_network(1)
    with pytest.raises(ValueError, match="delays are file, measured or sojourns, not 'live'"):
        build_policy(name, network, delays="live")
    with pytest.raises(ValueError, match="waits have a price already: say `delays: measured`"):
        build_policy(name, network, delays="sojourns", waiting=True)
