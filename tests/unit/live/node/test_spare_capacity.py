"""How much of its copies' time a node offers to its neighbors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferway.deployment import Batch
from inferway.dispatch import Dispatcher
from inferway.dispatch.batching import foresee
from inferway.live.node.fleets import Fleets
from inferway.network.node import ClientRates
from inferway.network.offers import Offer
from inferway.site import Fleet


class Capacity:
    """What a node can spare, as it last looked."""

    def __init__(self, fleets: Any, rates: ClientRates) -> None:
        self.fleets, self.rates = fleets, rates

    def own(self, but: Container[tuple[str, str]] = ()) -> list[Offer]:
        return Fleets.spare(self.fleets, self.rates.per_s, but)


def capacity(batch: Batch | None = None) -> tuple[Any, Any, Capacity]:
    """Two healthy copies of `tiny` at 100/s and one, which rests, of `large` at 10/s."""
    fleet = Fleet(
        ("tiny", "large"), np.array([100.0, 10.0]), np.array([0.7, 0.9]), np.array([2, 1])
    )
    dispatcher = Dispatcher(fleet, "fastest-only", target=None)
    foresee(dispatcher.site, [batch, None])
    pool = SimpleNamespace(
        variants=("tiny", "large"),
        grades=[0.7, 0.9],
        first=[0, 2, 3],
        dispatcher=dispatcher,
        health=SimpleNamespace(healthy=[True, True, False]),
    )
    fleets = SimpleNamespace(
        pool={"digits": pool}.get,
        running={("digits", "tiny"): 2, ("digits", "large"): 1, ("letters", "tiny"): 1},
    )
    demand = SimpleNamespace(for_clients=Counter())
    clock = SimpleNamespace(now_s=10.0)
    variants = {
        "tiny": SimpleNamespace(batch_on={"cpu": batch}.get, energy_on={"cpu": 0.4}.get),
        "large": SimpleNamespace(batch_on={}.get, energy_on={}.get),
    }
    tasks = dict.fromkeys(("digits", "letters"), SimpleNamespace(variants=variants))
    member = SimpleNamespace(hardware="cpu")
    plan = SimpleNamespace(node="metro", tasks=tasks, repository=False, member=member)
    fleets._plan = plan
    rates = ClientRates(clock.now_s)
    return demand, clock, Capacity(fleets, rates)


def test_what_clients_of_the_node_take_is_not_offered() -> None:
    demand, clock, made = capacity()
    tiny, large = made.own()
    assert (tiny.variant, tiny.spare_per_s, tiny.service_s) == ("tiny", 200.0, 0.01)
    assert (large.variant, large.spare_per_s) == ("large", 0.0)  # it rests
    assert tiny.together == large.together == 0
    assert (tiny.energy, large.energy) == (0.4, None)
    demand.for_clients["digits", "tiny"] += 160
    clock.now_s += 2.0
    made.rates.look(clock.now_s, demand.for_clients)
    assert made.own()[0].spare_per_s == pytest.approx(120.0)
    clock.now_s += 1.0
    made.rates.look(clock.now_s, demand.for_clients)  # nothing came: half of the rate counts still
    assert made.own()[0].spare_per_s == pytest.approx(160.0)
    made.rates.look(clock.now_s, demand.for_clients)  # no time has passed
    assert made.own()[0].spare_per_s == pytest.approx(160.0)


def test_what_is_about_to_go_is_not_offered() -> None:
    _, _, made = capacity()
    assert [one.variant for one in made.own(but={("digits", "tiny")})] == ["large"]


def test_batches_are_offered_at_what_one_takes_alone_and_all_take_together() -> None:
    demand, clock, made = capacity(Batch((1, 2, 4, 8), (0.01, 0.012, 0.016, 0.040), 1, 8))
    tiny, large = made.own()
    # Two copies, at most 4 in 16 ms each: 8 in 40 ms are fewer, and may be run together.
    assert (tiny.service_s, tiny.spare_per_s, tiny.together) == pytest.approx((0.01, 500.0, 16))
    assert (large.service_s, large.together) == (0.1, 0)
    demand.for_clients["digits", "tiny"] += 160
    clock.now_s += 2.0
    made.rates.look(clock.now_s, demand.for_clients)
    assert made.own()[0].spare_per_s == pytest.approx(420.0)


def test_what_waits_for_others_is_offered_at_what_so_many_take() -> None:
    _, _, made = capacity(Batch((1, 2, 4, 8), (0.01, 0.015, 0.020, 0.010), 2, 4))
    tiny, _ = made.own()
    assert (tiny.service_s, tiny.spare_per_s, tiny.together) == pytest.approx((0.015, 400.0, 8))


def test_batches_are_offered_by_what_was_measured() -> None:
    _, _, made = capacity(Batch((1, 4), (0.01, 0.016), 1, 4))
    view = made.fleets.pool("digits").dispatcher.site
    view.row_s[:2, 2] = 0.002, 0.008
    assert made.own()[0].spare_per_s == pytest.approx(2 / 0.005)
    view.row_s[:2, 2] = 0.02
    assert made.own()[0].spare_per_s == pytest.approx(200.0)  # one by one it is quicker


def test_a_copy_that_rests_takes_no_batch() -> None:
    _, _, made = capacity(Batch((1, 4), (0.01, 0.016), 1, 4))
    made.fleets.pool("digits").health.healthy[0] = False
    tiny, _ = made.own()
    assert (tiny.spare_per_s, tiny.together) == pytest.approx((250.0, 4))
