"""Policies by the servers that are left, and the scheduling table around them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.deployment import Batch
from inferway.deployment.policies import spec_of
from inferway.dispatch import Dispatcher
from inferway.scheduling import UNKNOWN, Conditions, Signal, controller_of, steer
from inferway.scheduling.neural_policy import packed, read
from inferway.scheduling.store import LearnedController
from inferway.site import Fleet
from inferway.workload import Span

Export = Callable[..., Path]
BURSTS = (Span(0, 0.0, np.inf, 180.0, None), Span(1, 0.0, np.inf, 10.0, None))


def made(place: Path, fleet: Fleet, policy: str = "rl-po", **conditions: Any) -> Any:
    spec = spec_of("scheduling", policy, checkpoint=place)
    return controller_of(spec, Conditions(fleet, 0.3, **conditions))


def test_a_file_decides_for_the_whole_fleet(export: Export, fleet: Fleet) -> None:
    path = export()
    controller, site = made(path, fleet), Dispatcher(fleet, "steered", target=None)
    site.arrive(0.0, 5)
    found = controller.act(controller.observe(site.site, UNKNOWN))
    learned = LearnedController(read(path))
    expected = learned.act(learned.observe(site.site, UNKNOWN))
    assert found.probabilities.tolist() == expected.probabilities.tolist()
    assert (controller.slot_s, controller.sees_phase, controller.on_rejection) == (1, False, False)


def test_the_policy_of_the_servers_that_are_left_takes_over(export: Export, fleet: Fleet) -> None:
    export("store/all.npz")
    folder = export("store/one-heavy.npz", counts=(2, 1), seed=2).parent
    controller, site = made(folder, fleet), Dispatcher(fleet, "steered", target=None)

    def decide() -> Any:
        routing = controller.act(controller.observe(site.site, UNKNOWN))
        steer(site.policy, routing)
        return routing

    whole = decide().probabilities
    assert site.policy.probabilities.tolist() == pytest.approx(whole.tolist())
    site.mark(2, False, 1.0)
    part = decide().probabilities
    assert part[2] == 0.0
    learned = LearnedController(read(folder / "one-heavy.npz"))
    seen = learned.observe(site.site, UNKNOWN, np.array([0, 1, 3]))
    assert part[[0, 1, 3]].tolist() == learned.act(seen).probabilities.tolist()
    assert site.policy.steered[0] == 1
    # Without a light server too, there is none: each request goes where it is in time.
    site.mark(0, False, 2.0)
    assert decide() is None
    assert site.policy.steered[0] == 0
    assert [site.arrive(3.0, word, 3.2) for word in range(5)] == [3, 3, 3, 3, 1]
    for server in (0, 2):
        site.mark(server, True, 4.0)
    decide()
    assert site.policy.probabilities[2] > 0.0


def test_packed_policies_are_in_a_store_as_well(export: Export, fleet: Fleet) -> None:
    plain = export("store/all.npz")
    (plain.parent / "packed.npz.xz").write_bytes(
        packed(export("one-heavy.npz", counts=(2, 1), seed=2))
    )
    controller, site = made(plain.parent, fleet), Dispatcher(fleet, "steered", target=None)
    site.mark(2, False, 1.0)
    routing = controller.act(controller.observe(site.site, UNKNOWN))
    assert routing is not None
    assert routing.probabilities[2] == 0.0
    plain.unlink()
    assert made(plain.parent, fleet)


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
    one, other = (
        controller.act(controller.observe(site, Signal(phase, 0.0))).probabilities
        for phase in (0, 1)
    )
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
    steer(site.policy, controller.act(controller.observe(site.site, UNKNOWN)))
    assert {*site.policy.smallest, *site.policy.largest} <= {1, 3, 5}
    with pytest.raises(
        ValueError, match=r"batches of 1, 3, 5 at heavy, which serves batches of 1$"
    ):
        made(path, fleet, "rl-po-b", batches=(offered, None))
