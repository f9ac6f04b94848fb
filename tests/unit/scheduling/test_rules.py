"""Schedulers that need no training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferway.deployment import PolicySpec
from inferway.deployment.policies import spec_of
from inferway.scheduling import SCHEDULERS, UNKNOWN, Conditions, Signal, controller_of
from inferway.scheduling.sa import greatest_share, late_share
from inferway.site import Fleet, empty_site
from inferway.workload import Span

BURSTS = (Span(0, 0.0, np.inf, 180.0, None), Span(1, 0.0, np.inf, 10.0, None))


def decided(
    name: str, fleet: Fleet, queues: list[int], signal: Signal = UNKNOWN, **options: Any
) -> list[float]:
    conditions = Conditions(fleet, 0.3, BURSTS)
    controller = controller_of(spec_of("scheduling", name, **options), [conditions])
    assert controller is not None
    site = empty_site(fleet, None, 15)
    site.queue[:] = queues
    (routing,) = controller.decide([site], [signal])
    assert routing is not None
    return [round(float(one), 12) for one in routing.probabilities]


def test_lw_and_hw_never_change(fleet: Fleet) -> None:
    for queues in ([0, 0, 0, 0], [15, 15, 15, 15]):
        assert decided("lw", fleet, queues) == [0.5, 0.5, 0, 0]
        assert decided("hw", fleet, queues) == [0, 0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("queues", "calm"),
    [
        ([0, 0, 0, 0], True),
        ([0, 0, 2, 2], True),  # two wait
        ([0, 0, 3, 2], False),
        ([0, 0, 0, 4], False),
        ([1, 0, 0, 0], False),
    ],
)
def test_the_hand_rule(fleet: Fleet, queues: list[int], calm: bool) -> None:
    assert decided("hand", fleet, queues) == (
        [0, 0, 0.5, 0.5] if calm else [0.44, 0.44, 0.06, 0.06]
    )
    assert decided("hand", fleet, [1, 0, 0, 0], share=0.5) == [0.25] * 4


def test_infaas_leaves_out_the_overloaded(fleet: Fleet) -> None:
    # Half of 300 ms: 4 heavy or 15 light requests are more, 3 and 14 are less.
    assert decided("infaas", fleet, [14, 0, 3, 0]) == [0.25] * 4
    assert decided("infaas", fleet, [0, 0, 4, 0]) == [round(1 / 3, 12)] * 2 + [0, round(1 / 3, 12)]
    assert decided("infaas", fleet, [15, 0, 4, 4]) == [0, 1, 0, 0]
    assert decided("infaas", fleet, [15, 15, 4, 4]) == [0.25] * 4


def test_sa_by_phase(fleet: Fleet) -> None:
    share = greatest_share(fleet, 180.0, 0.3, 0.02)
    assert late_share(fleet, 180.0, 0.3, share) == pytest.approx(0.02, abs=1e-9)
    assert late_share(fleet, 180.0, 0.3, share + 1e-4) > 0.02
    assert share == pytest.approx(0.21354, abs=1e-4)
    assert decided("sa", fleet, [0] * 4, Signal(1, 0.0)) == [0, 0, 0.5, 0.5]
    found = decided("sa", fleet, [0] * 4, Signal(0, 0.0))
    assert found == pytest.approx([(1 - share) / 2] * 2 + [share / 2] * 2, abs=1e-12)


def test_sa_where_nothing_keeps_the_deadline_loses_the_least(fleet: Fleet) -> None:
    share = greatest_share(fleet, 300.0, 0.3, 0.02)
    grid = np.linspace(0, 1, 201)
    least = min(late_share(fleet, 300.0, 0.3, one) for one in grid)
    assert 0.02 < late_share(fleet, 300.0, 0.3, share) <= least + 1e-12


def test_what_is_needed_is_said(fleet: Fleet) -> None:
    for name in ("sa", "infaas"):
        with pytest.raises(ValueError, match=f"{name} needs a deadline to keep"):
            controller_of(spec_of("scheduling", name), [Conditions(fleet, None, BURSTS)])
    with pytest.raises(ValueError, match="sa goes by the workload's state"):
        controller_of(spec_of("scheduling", "sa"), [Conditions(fleet, 0.3)])
    alone = Fleet(("one",), np.array([1.0]), np.array([0.5]), np.array([2]))
    with pytest.raises(ValueError, match="only one has instances"):
        controller_of(spec_of("scheduling", "sa"), [Conditions(alone, 0.3, BURSTS)])
    with pytest.raises(ValueError, match="unknown scheduling policy 'best': expected one of rl-po"):
        controller_of(PolicySpec("best"), [Conditions(fleet, 0.3)])


def test_every_name_is_one_of_a_file(fleet: Fleet) -> None:
    for name in SCHEDULERS:
        if not name.startswith("rl-"):
            controller = controller_of(
                spec_of("scheduling", name), [Conditions(fleet, 0.3, BURSTS)]
            )
            assert (controller is None) == (name in ("hw-e", "sq"))
