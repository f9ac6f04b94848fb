"""Who talks to whom, and which end connects."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.live import ServeError
from inferway.live.control.session import neighbors_of
from inferway.network import Topology

ADDRESSES = {"cloud": "10.0.0.1:7447", "isp": "10.0.0.2:7447"}


@pytest.fixture
def topology() -> Topology:
    links = np.array([[1, 0], [1, 2], [3, 1], [1, 3]])
    return Topology(("cloud", "isp", "a", "b"), links, np.zeros(4))


def test_of_each_link_the_later_end_connects(topology: Topology) -> None:
    assert neighbors_of(topology, "cloud", ADDRESSES) == {"isp": None}
    assert neighbors_of(topology, "isp", ADDRESSES) == {
        "cloud": "10.0.0.1:7447",
        "a": None,
        "b": None,
    }
    assert neighbors_of(topology, "a", ADDRESSES) == {"isp": "10.0.0.2:7447"}


def test_what_is_missing_is_named(topology: Topology) -> None:
    with pytest.raises(ServeError, match="no node z; it has cloud, isp, a, b"):
        neighbors_of(topology, "z", ADDRESSES)
    with pytest.raises(ServeError, match="node a connects to isp, which has no address"):
        neighbors_of(topology, "a", {})
