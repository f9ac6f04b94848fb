"""Emulated networks, and what tests do on their nodes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from inferway.lab import Emulation, obstacle
from inferway.network import Topology

PORT = 7000
PATIENCE_S = 20.0
Connect = Callable[..., list[float]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = obstacle()
    if reason is None:
        return
    for item in items:
        if Path(__file__).parent in item.path.parents and "network" in getattr(
            item, "fixturenames", ()
        ):
            item.add_marker(pytest.mark.skip(reason=reason))


def line() -> Topology:
    """Edge, office and cloud: 6 ms and 50 ms."""
    return Topology(
        ("edge", "office", "cloud"), np.array([[0, 1], [1, 2]]), np.array([0.006, 0.05])
    )


@pytest.fixture(scope="package")
def running() -> Iterator[Emulation]:
    with Emulation(line()) as network:
        yield network


@pytest.fixture
def network(running: Emulation) -> Iterator[Emulation]:
    """A network as its file says, whatever the test before did to it."""
    running.heal()
    yield running
    running.heal()


@pytest.fixture
def connect_s() -> Connect:
    """Give a function: seconds that connections take, which the kernels alone make."""
    return connect


def connect(network: Emulation, one: str, other: str, count: int = 1) -> list[float]:
    taken = []
    with network.open_socket(other) as listener:
        listener.bind((network.addresses[other], 0))
        listener.listen(count)
        for _ in range(count):
            with network.open_socket(one) as client:
                client.settimeout(PATIENCE_S)
                start_s = time.monotonic()
                client.connect(listener.getsockname())
                taken.append(time.monotonic() - start_s)
    return taken


@pytest.fixture
def datagrams(network: Emulation) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Give a socket on the edge and one in the office, that send to each other."""
    with (
        network.open_socket("edge", kind=socket.SOCK_DGRAM) as edge,
        network.open_socket("office", kind=socket.SOCK_DGRAM) as office,
    ):
        for one, name in ((edge, "edge"), (office, "office")):
            one.bind((network.addresses[name], PORT))
            one.settimeout(PATIENCE_S)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        edge.connect((network.addresses["office"], PORT))
        office.connect((network.addresses["edge"], PORT))
        yield edge, office
