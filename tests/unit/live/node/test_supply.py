"""How much of its copies' time a node offers to its neighbors."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from inferway.live.node.supply import Supply


def supply() -> tuple[Any, Any, Supply]:
    """Two healthy copies of `tiny` at 100/s and one, which rests, of `large` at 10/s."""
    site = SimpleNamespace(
        variants=("tiny", "large"),
        accuracy=[0.7, 0.9],
        first=[0, 2, 3],
        dispatcher=SimpleNamespace(site=SimpleNamespace(rate=np.array([100.0, 10.0]))),
        health=SimpleNamespace(healthy=[True, True, False]),
    )
    sites = SimpleNamespace(
        by_task={"digits": site},
        running={("digits", "tiny"): 2, ("digits", "large"): 1, ("letters", "tiny"): 1},
    )
    accounts = SimpleNamespace(for_clients=Counter())
    clock = SimpleNamespace(now_s=10.0)
    made = Supply(sites, accounts, repository=False, now=lambda: clock.now_s)  # type: ignore[arg-type]
    return accounts, clock, made


def test_what_clients_of_the_node_take_is_not_offered() -> None:
    accounts, clock, made = supply()
    tiny, large = made.own()
    assert (tiny.variant, tiny.spare_per_s, tiny.service_s) == ("tiny", 200.0, 0.01)
    assert (large.variant, large.spare_per_s) == ("large", 0.0)  # it rests
    accounts.for_clients["digits", "tiny"] += 160
    clock.now_s += 2.0
    made.look()
    assert made.own()[0].spare_per_s == pytest.approx(120.0)
    clock.now_s += 1.0
    made.look()  # nothing came: half of the rate counts still
    assert made.own()[0].spare_per_s == pytest.approx(160.0)
    made.look()  # no time has passed
    assert made.own()[0].spare_per_s == pytest.approx(160.0)


def test_what_is_about_to_go_is_not_offered() -> None:
    _, _, made = supply()
    assert [one.variant for one in made.own(but={("digits", "tiny")})] == ["large"]
