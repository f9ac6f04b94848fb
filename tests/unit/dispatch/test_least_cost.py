"""Least cost: eq. 6 with the wait that is predicted, and servers that are saturated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace as changed

import inferway
from inferway.dispatch import Dispatcher
from inferway.dispatch.deployed import dispatcher_of, dispatcher_on
from inferway.dispatch.recording import Recording
from inferway.dispatch.replay import replay
from inferway.network.offers import Offer, fleet_at, lasting_classes
from inferway.site import REJECT, Fleet
from inferway.site.fleet import fleet_of

FLEET = Fleet(
    ("tiny", "large"), np.array([100.0, 20.0]), np.array([0.8, 0.9]), np.array([2, 1]), buffer=4
)
"""10 ms at 0.8, 50 ms at 0.9: at 4 ms a point they cost the same."""


def made(
    fleet: Fleet = FLEET, *, alpha: float = 1.0, lasting: int = 0, **options: object
) -> Dispatcher:
    dispatcher = Dispatcher(fleet, "least-cost", target=None, alpha=alpha, **options)
    dispatcher.set_lasting(lasting)
    return dispatcher


@pytest.mark.parametrize(("alpha", "server"), [(0.0, 0), (3.9, 0), (4.1, 2), (1e6, 2)])
def test_the_price_of_inaccuracy_decides_between_quick_and_accurate(
    alpha: float, server: int
) -> None:
    assert made(alpha=alpha).arrive(0.0, 0) == server


def test_equal_costs_go_to_what_answers_sooner() -> None:
    fleet = Fleet(("a", "b"), np.array([8.0, 4.0]), np.array([0.5, 0.75]), np.array([1, 1]))
    # 0.125 s + 0.5 * 0.5 s and 0.25 s + 0.25 * 0.5 s, all exact in binary.
    assert made(fleet, alpha=5.0).arrive(0.0, 0) == 0


def test_waits_count_as_latency() -> None:
    site = made(alpha=3.0)  # tiny costs 70 ms, large 80
    assert [site.arrive(0.0, 0) for _ in range(5)] == [0, 1, 0, 1, 2]
    assert site.predicted_wait_s == 0.0
    # Tiny's servers have 20 ms to do, of which 5 have passed.
    assert site.arrive(0.005, 0) == 0
    assert site.predicted_wait_s == pytest.approx(0.015)


@pytest.mark.parametrize(("wait_price", "server"), [(1.0, 0), (1.9, 0), (2.1, 2), (50.0, 2)])
def test_a_wait_costs_its_price(wait_price: float, server: int) -> None:
    # Large costs 15 ms more than tiny, and does not wait; tiny's servers have 7 ms to do.
    site = made(alpha=2.5, wait_price=wait_price)
    assert [site.arrive(0.0, 0) for _ in range(2)] == [0, 1]
    assert site.arrive(0.0025, 0) == server


def test_a_price_of_waiting_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"wait costs 1 s or more, not 0\.5"):
        made(wait_price=0.5)


def test_rows_are_served_one_after_the_other() -> None:
    # Of 3 rows: tiny 30 ms + 20 points, large 150 ms + 10 points.
    assert made(alpha=11.0).arrive(0.0, 0, rows=3) == 0
    assert made(alpha=13.0).arrive(0.0, 0, rows=3) == 2


def test_only_servers_that_may_take_the_request() -> None:
    site = made(alpha=0.0)
    assert site.arrive(0.0, 0, floor=0.85) == 2
    assert site.arrive(0.0, 0, classes=0b10) == 2
    assert site.arrive(0.0, 0, deadline_s=0.005) == REJECT
    site.mark(0, False, 0.0)
    assert site.arrive(0.0, 0) == 1
    for server in (1, 2):
        site.mark(server, False, 0.0)
    assert site.arrive(0.0, 0) == REJECT


def test_impossible_alphas_are_refused() -> None:
    for alpha in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="ms per point; it must be 0 or more"):
            made(alpha=alpha)


def test_a_server_with_a_longer_wait_is_saturated() -> None:
    site = made(alpha=0.0, max_wait_s=0.015)
    # Two each at tiny's servers, the third would wait for 20 ms.
    assert [site.arrive(0.0, 0) for _ in range(5)] == [0, 1, 0, 1, 2]
    assert site.arrive(0.0, 0) == REJECT
    assert site.arrive(0.006, 0) == 0  # 14 ms are left
    free = made(alpha=0.0)
    assert [free.arrive(0.0, 0) for _ in range(7)] == [0, 1, 0, 1, 0, 1, 0]


def test_lasting_classes_are_never_saturated() -> None:
    site = made(alpha=0.0, max_wait_s=0.0, lasting=0b10)
    assert [site.arrive(0.0, 0) for _ in range(6)] == [0, 1, 2, 2, 2, 2]
    assert site.arrive(0.0, 0) == REJECT  # its buffers are full
    alone = made(alpha=0.0, max_wait_s=0.0)
    assert [alone.arrive(0.0, 0) for _ in range(4)] == [0, 1, 2, REJECT]


@pytest.mark.parametrize("policy", ["fastest-only", "jiq-accurate", "r-jsq", "priced", "deadline"])
def test_saturation_holds_for_every_policy(policy: str) -> None:
    site = Dispatcher(FLEET, policy, target=0.82, rate_per_s=50.0, max_wait_s=0.015)
    site.set_lasting(0b10)
    plain = Dispatcher(FLEET, policy, target=0.82, rate_per_s=50.0)
    for step in range(12):
        server = site.arrive(0.0, 7919 * step)
        plain.arrive(0.0, 7919 * step)
        assert server in (2, REJECT) or site.predicted_wait_s <= 0.015
    assert site.site.queue[:2].max() <= 2
    assert site.site.queue[2] > 1 or policy == "fastest-only"
    assert plain.site.queue.max() > 2


def test_a_wait_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="the longest wait is 0 s or more, not -1 s"):
        made(max_wait_s=-1.0)
    with pytest.raises(ValueError, match="not nan s"):
        made(max_wait_s=np.nan)


def test_saturation_is_recorded_and_replayed(tmp_path: Path) -> None:
    recording = Recording(made(alpha=0.5, max_wait_s=0.012, lasting=0b10), tmp_path / "run")
    generator = np.random.default_rng(5)
    decided = set()
    for step in range(300):
        decided.add(recording.arrive(step / 400, int(generator.integers(2**62))))
        for server in range(3):
            if recording.site.queue[server] and generator.random() < 0.4:
                recording.finish(server, step / 400, 0.01)
    recording.close()
    found = replay(tmp_path / "run")
    assert (found.requests, found.differences) == (300, ())
    assert decided >= {0, 1, 2}


FILE = """
tasks:
  digits:
    variants:
      tiny: {accuracy: 0.8, service: {mean: 10 ms}}
      large: {accuracy: 0.9, service: {mean: 50 ms}}
nodes: {here: {instances: {digits/tiny: 1, digits/large: 1}}}
"""


def test_a_file_s_alpha_is_the_policy_s_unless_it_says_another(tmp_path: Path) -> None:
    def chosen(*lines: str) -> int:
        path = tmp_path / "file.yaml"
        path.write_text(FILE + "\n".join(lines) + "\n", encoding="utf-8")
        return dispatcher_of(inferway.load(path), "digits").arrive(0.0, 0)

    assert chosen("dispatch: {policy: least-cost}") == 0
    assert chosen("dispatch: {policy: least-cost}", "cost: {alpha: 5}") == 1
    assert chosen("dispatch: {policy: least-cost, alpha: 3}", "cost: {alpha: 5}") == 0
    assert chosen("dispatch: {policy: least-cost, alpha: 5}") == 1
    assert chosen("dispatch: {policy: least-cost, alpha: 0}", "cost: {alpha: 5}") == 0
    with pytest.raises(inferway.DeploymentError, match="alpha"):
        chosen("dispatch: {policy: least-cost, alpha: -1}")


def test_a_node_that_forwards(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(FILE + "dispatch: {policy: least-cost, alpha: 1}\n", encoding="utf-8")
    deployment = inferway.load(path)
    cloud = Offer("digits", "large", "cloud", 0.9, 0.005, 0.02, 50.0, ("cloud",), True)
    metro = changed(cloud, node="metro", rtt_s=0.012, path=("metro",), repository=False)
    own = [("tiny", 0.8, 100.0, 1)]
    fleet, stands_for = fleet_at("digits", own, [cloud, metro], 8)
    assert fleet.variants == ("tiny", "large@metro", "large@cloud")
    site = dispatcher_on(
        deployment,
        deployment.tasks["digits"],
        fleet,
        rate_per_s=None,
        max_wait_s=0.016,
        lasting=lasting_classes(stands_for),
    )
    taken = [fleet.variants[site.site.server_class[site.arrive(0.0, 0)]] for _ in range(67)]
    # 27 ms at metro, 30 ms here, 35 ms in the cloud.
    assert taken[:3] == ["large@metro", "large@metro", "tiny"]
    assert taken.count("large@metro") == 2  # the next would wait 17 ms
    assert taken.count("tiny") == 1  # a second would cost 40 ms
    assert taken[3:] == ["large@cloud"] * 64
    assert fleet_of(deployment, "digits").variants == ("tiny", "large")


def test_what_lasts_is_the_repository_s_or_all_where_there_is_none() -> None:
    cloud = Offer("digits", "large", "cloud", 0.9, 0.005, 0.02, 50.0, ("cloud",), True)
    metro = changed(cloud, node="metro", path=("metro",), repository=False)
    assert lasting_classes([None, metro, cloud, None]) == 0b100
    assert lasting_classes([None, metro, None], repository=True) == 0b101
    assert lasting_classes([None, metro]) == 0b11
