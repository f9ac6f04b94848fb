"""Alias, single queue and early drop: what they decide, state by state."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.dispatch import Dispatcher
from inferway.dispatch.alias import Alias, set_routing
from inferway.site import HOLD, REJECT, Fleet


def fleet(buffer: int | None = 15) -> Fleet:
    return Fleet(
        ("light", "heavy"), np.array([100.0, 20.0]), np.array([0.7, 0.8]), np.array([2, 2]),
        buffer=buffer,
    )  # fmt: skip


def frequencies(site: Dispatcher, classes: int = -1, count: int = 20_000) -> np.ndarray:
    found = np.zeros(site.fleet.servers)
    words = np.random.default_rng(3).integers(-(2**63), 2**63, count)
    for word in words.tolist():
        server = site.arrive(0.0, word, classes=classes)
        if server >= 0:
            found[server] += 1
            site.finish(server, 0.0, 0.01)
    return found / count


def probabilities_of(alias: Alias) -> np.ndarray:
    """What the columns of the table come to."""
    n = len(alias.threshold)
    found = alias.threshold / n
    np.add.at(found, alias.other, (1 - alias.threshold) / n)
    return found


@pytest.mark.parametrize("servers", [1, 2, 4, 5, 64, 4096])
def test_the_table_is_the_distribution(servers: int) -> None:
    many = Fleet(("a",), np.ones(1), np.ones(1), np.array([servers]))
    alias = Alias.build(many, target=None, rate_per_s=None)
    generator = np.random.default_rng(servers)
    for _ in range(20):
        wanted = generator.exponential(size=servers) ** 4
        wanted[generator.random(servers) < 0.3] = 0.0
        wanted[0] += wanted.sum() == 0
        wanted /= wanted.sum()
        set_routing(alias, wanted)
        assert probabilities_of(alias) == pytest.approx(wanted, abs=1e-12)
        # Those with probability 0 are never drawn, not even by rounding.
        never = np.flatnonzero(wanted == 0)
        assert (alias.threshold[never] == 0).all()
        assert not np.isin(never, alias.other[alias.threshold < 1]).any()


def test_requests_follow_the_probabilities() -> None:
    site = Dispatcher(fleet(), "alias", target=None, probabilities={"light": 0.2, "heavy": 0.8})
    assert frequencies(site) == pytest.approx([0.1, 0.1, 0.4, 0.4], abs=0.015)
    set_routing(site.policy, np.array([0.5, 0.0, 0.25, 0.25]))
    assert frequencies(site) == pytest.approx([0.5, 0.0, 0.25, 0.25], abs=0.015)
    # One that may use the heavy class alone: as they share between them.
    set_routing(site.policy, np.array([0.7, 0.0, 0.1, 0.2]))
    assert frequencies(site, classes=0b10) == pytest.approx([0, 0, 1 / 3, 2 / 3], abs=0.015)
    # Where those that it may use have probability 0, all of them alike.
    set_routing(site.policy, np.array([0.5, 0.5, 0.0, 0.0]))
    assert frequencies(site, classes=0b10) == pytest.approx([0, 0, 0.5, 0.5], abs=0.015)
    # One drawn for a server that has failed is drawn again.
    set_routing(site.policy, np.array([0.2, 0.4, 0.4, 0.0]))
    site.mark(1, False, 0.0)
    assert frequencies(site) == pytest.approx([1 / 3, 0, 2 / 3, 0], abs=0.015)


def test_by_service_rate_unless_told() -> None:
    site = Dispatcher(fleet(), "alias", target=None)
    assert site.policy.probabilities == pytest.approx([100 / 240, 100 / 240, 20 / 240, 20 / 240])


def test_one_drawn_for_a_full_server_is_rejected() -> None:
    site = Dispatcher(fleet(buffer=1), "alias", target=None, probabilities={"heavy": 1.0})
    set_routing(site.policy, np.array([0.0, 0.0, 1.0, 0.0]))
    assert [site.arrive(0.0, word) for word in range(3)] == [2, REJECT, REJECT]


def test_batches_by_the_modified_rule_of_neuts() -> None:
    site = Dispatcher(fleet(), "alias", target=None)
    set_routing(site.policy, np.array([0.0, 0, 1, 0]), np.array([1, 3]), np.array([1, 5]))
    taken = []
    for word in range(8):
        site.arrive(0.0, word)
        taken.append(site.pull(2, 0.0, 0))
    assert taken == [(0, 0), (0, 0), (0, 3), (0, 4), (0, 5), (0, 5), (0, 5), (0, 5)]


@pytest.mark.parametrize(
    ("wanted", "sizes", "sentence"),
    [
        ([0.5, 0.5], {}, "routing has 2 probabilities for 4 servers"),
        ([0.5, 0.5, 0.5, 0.5], {}, "0 or more and sum to 1"),
        ([1.5, -0.5, 0, 0], {}, "0 or more and sum to 1"),
        ([np.nan, 0.5, 0.5, 0], {}, "0 or more and sum to 1"),
        ([1, 0, 0, 0], {"smallest": np.array([0, 1])}, "the smallest is 1 or more"),
        ([1, 0, 0, 0], {"smallest": np.array([1, 3])}, "the smallest is 1 or more"),
        ([1, 0, 0, 0], {"largest": np.array([1])}, "2 and 1 batch sizes for 2 classes"),
    ],
)
def test_what_is_no_routing_changes_nothing(
    wanted: list[float], sizes: dict[str, np.ndarray], sentence: str
) -> None:
    alias = Alias.build(fleet(), target=None, rate_per_s=None)
    before = [field.copy() for field in alias]
    with pytest.raises(ValueError, match=sentence):
        set_routing(alias, np.array(wanted), **sizes)
    assert all((now == then).all() for now, then in zip(alias, before, strict=True))


def test_a_variant_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="probabilities of huge, which is none of the classes"):
        Dispatcher(fleet(), "alias", target=None, probabilities={"huge": 1.0})


def test_single_queue_takes_the_accurate_ones_first() -> None:
    site = Dispatcher(fleet(), "sq", target=None)
    assert sorted(site.arrive(0.0, word) for word in range(2)) == [2, 3]
    assert sorted(site.arrive(0.0, word) for word in range(2)) == [0, 1]
    assert site.arrive(0.0, 5) == HOLD
    site.finish(1, 1.0, 0.01)
    assert site.arrive(1.0, 6) == 1
    for server in range(4):
        site.mark(server, False, 2.0)
    assert site.arrive(2.0, 7) == REJECT


def test_single_queue_with_even_ties() -> None:
    site = Dispatcher(fleet(), "sq", target=None, ties="uniform")
    assert frequencies(site) == pytest.approx([0.25] * 4, abs=0.015)
    assert sorted(site.arrive(0.0, word) for word in range(5)) == [HOLD, 0, 1, 2, 3]
    with pytest.raises(ValueError, match="ties are broken as heavy or uniform, not as light"):
        Dispatcher(fleet(), "sq", target=None, ties="light")


def test_early_drop_serves_only_what_can_be_in_time() -> None:
    site = Dispatcher(fleet(buffer=4), "hw-e", target=None, deadline_s=0.1)
    assert frequencies(site) == pytest.approx([0, 0, 0.5, 0.5], abs=0.015)
    site.mark(3, False, 0.0)
    for at_s in (0.0, 0.01, 0.04):
        assert site.arrive(at_s, 1) == 2
    # 50 ms of service are left to those that came 50 ms ago or later.
    assert site.pull(2, 0.05, 0) == (0, 1)
    assert site.pull(2, 0.055, 0) == (1, 1)
    assert site.pull(2, 0.075, 0) == (2, 1)
    assert site.pull(2, 0.2, 0) == (3, 1)
    assert site.arrive(0.2, 1) == 2
    assert site.arrive(0.2, 1) == REJECT
    assert site.arrive(0.2, 1, classes=0b01) in (0, 1)
