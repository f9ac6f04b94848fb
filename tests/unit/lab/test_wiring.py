"""Addresses, links and names of a topology; no root needed."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.lab import EmulationError
from inferway.lab.emulation import wiring
from inferway.network import Topology


def test_the_fastest_of_parallel_links_counts() -> None:
    links = np.array([[0, 1], [1, 0], [1, 2]])
    found = wiring(Topology(("a", "b", "c"), links, np.array([0.03, 0.02, 0.01])))
    assert found.links == ((0, 1, 0.02), (1, 2, 0.01))
    assert [str(one) for one in found.neighbors(1)] == ["10.77.0.1", "10.77.0.3"]
    assert [str(one) for one in found.neighbors(2)] == ["10.77.0.2"]
    assert found.hosts().splitlines()[1:] == [
        "::1 localhost",
        "10.77.0.1 a",
        "10.77.0.2 b",
        "10.77.0.3 c",
    ]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("a", "b c"), "node 'b c' cannot be emulated"),
        (("a", "../b"), "node '../b' cannot be emulated"),
        (("a", "localhost"), "node 'localhost' cannot be emulated"),
        (("a", "A"), "nodes a and A cannot be emulated together"),
        (tuple(f"n{k}" for k in range(4097)), "has 4097 nodes; at most 4096"),
    ],
)
def test_names_that_no_host_can_have(names: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(EmulationError, match=sentence):
        wiring(Topology(names, np.array([[0, 1]]), np.array([0.01])))
