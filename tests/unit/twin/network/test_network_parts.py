"""Movers, offers on their way, service times, percentiles."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from offering import own_offer

from inferway.deployment import ServiceTime
from inferway.network.layout import deployed
from inferway.twin.network.events import BudgetError, Mover, OfferExchange
from inferway.twin.network.ledger import binned, percentile
from inferway.twin.network.nodes import NodePools, ServiceTimes, Terrain


class Clock:
    """Calls in the order of their times."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._calls = []

    def after(self, wait_s, call, argument) -> None:
        self._calls.append((self.now_s + wait_s, len(self._calls), call, argument))

    def until(self, end_s) -> None:
        while due := [one for one in self._calls if one[0] <= end_s]:
            first = min(due, key=lambda one: one[:2])
            self._calls.remove(first)
            self.now_s = first[0]
            first[2](first[3])
        self.now_s = end_s


@pytest.fixture
def terrain(small):
    deployment = small()
    return Terrain(deployment, deployed(deployment).network)


def mover_of(terrain, name, clock, *, in_flight=0, log=None):
    node = terrain.number[name]

    class Old:
        gone = None

        def __init__(self) -> None:
            self.in_flight = in_flight

    replaced: list[Old] = []

    def refresh(task):
        replaced.append(Old())
        if log is not None:
            log.append((round(clock.now_s, 6), sorted(running)))
        return replaced[-1]

    running: set[int] = set()
    moved: list[int] = []
    mover = Mover(
        terrain,
        node,
        running,
        refresh=refresh,
        clock=clock,
        told_s=0.15,
        load_s=lambda size: size / 100e6,
        moved=moved.append,
    )
    return mover, running, moved, replaced


def pair(terrain, node, task, variant, copy=0):
    model = terrain.index[terrain.number[node], terrain.network.tasks.index(task), variant]
    return terrain.models[model].pairs[copy]


def wanted(terrain, *pairs):
    x = np.zeros(len(terrain.network.pairs.node), np.uint8)
    x[list(pairs)] = 1
    return x


def test_copies_come_one_after_the_other_and_old_ones_go_last(terrain) -> None:
    clock = Clock()
    log: list = []
    mover, running, moved, _ = mover_of(terrain, "edge-1", clock, log=log)
    tiny, other = (pair(terrain, "edge-1", task, "tiny") for task in ("quiet", "other"))
    large = pair(terrain, "edge-1", "quiet", "large")
    mover.begin(wanted(terrain, tiny))
    assert running == {tiny}
    mover.toward(wanted(terrain, other, large))
    clock.until(0.5)
    assert running == {tiny}  # 100 MB take a second
    clock.until(10.0)
    assert running == {other, large}
    assert sorted(moved) == sorted([other, large])
    # 500 MB hold the old one beside either of the new ones, but not beside both.
    assert mover.most == 500e6
    assert [sorted(now) for _, now in log][-1] == sorted([other, large])
    assert mover.used == 500e6


def test_room_is_free_only_when_the_last_request_has_gone(terrain) -> None:
    clock = Clock()
    mover, running, _, replaced = mover_of(terrain, "edge-2", clock, in_flight=1)
    gone, kept = (
        pair(terrain, "edge-2", "quiet", "tiny"),
        pair(terrain, "edge-2", "quiet", "tiny", 1),
    )
    new = pair(terrain, "edge-2", "other", "tiny")
    mover.begin(wanted(terrain, gone, kept))
    mover.toward(wanted(terrain, kept, new))
    clock.until(100.0)
    assert running == {kept}
    assert mover.used == 200e6  # the one that leaves still holds its bytes
    replaced[-1].gone()
    clock.until(200.0)
    assert running == {kept, new}


def test_more_than_the_budget_is_an_error(terrain) -> None:
    mover, _, _, _ = mover_of(terrain, "edge-2", Clock())
    with pytest.raises(BudgetError, match=r"node edge-2 holds 300000000 bytes, over its budget"):
        mover.begin(
            wanted(
                terrain,
                pair(terrain, "edge-2", "quiet", "tiny"),
                pair(terrain, "edge-2", "quiet", "tiny", 1),
                pair(terrain, "edge-2", "other", "tiny"),
            )
        )


def test_news_travels_for_half_a_round_trip_per_hop(terrain) -> None:
    clock, heard = Clock(), []
    cloud = terrain.number["cloud"]
    metro, edge = terrain.number["metro"], terrain.number["edge-1"]
    running = {cloud: [own_offer("cloud", "quiet", "large", 0.9, 0.008, 100.0, True)], metro: []}
    exchange = OfferExchange(
        terrain,
        lambda node: running.get(node, []),
        lambda node, tasks: heard.append((round(clock.now_s, 6), node, tasks)),
        clock.after,
    )
    exchange.begin()
    assert [offer.node for offer in exchange.heard(edge)["quiet"]] == ["cloud"]
    assert exchange.heard(edge)["quiet"][0].rtt_s == pytest.approx(0.046)
    running[metro] = [own_offer("metro", "quiet", "tiny", 0.6, 0.002, 400.0)]
    exchange.tell(metro, clock.now_s)
    clock.until(1.0)
    assert (0.003, edge, {"quiet"}) in heard
    assert (0.005, terrain.number["edge-2"], {"quiet"}) in heard
    assert len(heard) == 2
    running[cloud] = [
        *running[cloud],
        own_offer("cloud", "other", "large", 0.95, 0.009, 90.0, True),
    ]
    exchange.tell(cloud, clock.now_s)
    clock.until(2.0)
    assert [(time_s, node) for time_s, node, _ in heard[2:]] == [
        (1.02, metro),
        (1.023, edge),
        (1.025, terrain.number["edge-2"]),
    ]


def test_a_node_can_spare_what_its_own_clients_have_not_taken_of_late(small) -> None:
    deployment = small()
    terrain = Terrain(deployment, deployed(deployment).network)
    pools = NodePools(deployment, terrain, {}, {}, lambda _: {}, seed=1, measure=True)
    metro = terrain.number["metro"]
    pools.running[metro] = {pair(terrain, "metro", "quiet", "large")}
    assert pools.own(metro) == [own_offer("metro", "quiet", "large", 0.9, 0.008, 125.0, False)]
    large = terrain.index[metro, 0, "large"]
    pools.served[large] += 1000  # what neighbors took they may go on taking
    pools.for_clients[metro][large] += 50
    pools.look(metro, 2.0)
    assert pools.own(metro)[0].spare_per_s == 100
    pools.look(metro, 4.0)
    assert pools.own(metro)[0].spare_per_s == 112.5
    assert [one.repository for one in pools.own(terrain.number["cloud"])] == [True, True]
    pools.aim(metro, wanted(terrain, pair(terrain, "metro", "other", "large")))
    assert pools.own(metro) == []  # it goes on serving what is sent, and offers it no more


def test_spare_rates_alone_wait_for_the_next_refresh(terrain) -> None:
    clock = Clock()
    metro = terrain.number["metro"]
    own = [own_offer("metro", "quiet", "tiny", 0.6, 0.002, 400.0)]
    exchange = OfferExchange(
        terrain, lambda node: own if node == metro else [], lambda *_: None, clock.after
    )
    exchange.begin()
    own[0] = replace(own[0], spare_per_s=390.0)
    exchange.tell(metro, 1.0)
    assert exchange.letters == 0
    exchange.tell(metro, 2.0)
    assert exchange.letters == 2  # both edges
    own[0] = replace(own[0], spare_per_s=100.0)
    exchange.tell(metro, 2.5)
    assert exchange.letters == 4


@pytest.mark.parametrize(
    ("distribution", "more", "cv"),
    [("deterministic", {}, 0.0), ("exponential", {}, 1.0), ("lognormal", {"cv": 0.5}, 0.5)],
)
def test_service_times_have_the_file_s_moments(distribution, more, cv) -> None:
    times = ServiceTimes(ServiceTime(distribution, 0.02, **more), 1, 2)
    drawn = np.array([times.next() for _ in range(40_000)])
    assert drawn.mean() == pytest.approx(0.02, rel=0.02)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, abs=0.03)
    again = ServiceTimes(ServiceTime(distribution, 0.02, **more), 1, 2)
    assert [again.next() for _ in range(5)] == drawn[:5].tolist()


def test_percentiles_are_right_to_half_a_percent() -> None:
    rng = np.random.default_rng(4)
    times = rng.exponential(0.03, 100_000)
    for share in (0.5, 0.95, 0.99):
        assert percentile(binned(times), share) == pytest.approx(
            np.quantile(times, share), rel=0.005
        )
    assert np.isnan(percentile(binned(times[:0]), 0.5))
