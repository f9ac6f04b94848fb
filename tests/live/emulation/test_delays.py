"""Packets on their way: as late as the file says, in order, lost or limited as told."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from inferway.lab import Emulation

PATIENCE_S = 20.0


@pytest.mark.parametrize(
    ("one", "other", "rtt_s"), [("edge", "office", 0.006), ("cloud", "office", 0.05)]
)
def test_a_round_trip_takes_what_the_link_says(
    network: Emulation, connect_s: Callable[..., list[float]], one: str, other: str, rtt_s: float
) -> None:
    taken = connect_s(network, one, other, count=30)
    assert min(taken) >= rtt_s
    # The machine may be busy; the relay is not what waits for it.
    assert np.median(taken) < rtt_s + 0.005
    assert network.counts().late_s(0.5) < 0.001


def test_only_neighbors_are_reached(network: Emulation) -> None:
    with network.open_socket("edge") as client, pytest.raises(OSError, match="unreachable"):
        client.connect((network.addresses["cloud"], 80))


def test_order_is_kept_while_a_link_becomes_faster(
    network: Emulation, datagrams: tuple[socket.socket, socket.socket]
) -> None:
    edge, office = datagrams
    network.slow("edge", "office", rtt_s=0.2)
    for number in range(100):
        edge.send(number.to_bytes(2))
    network.heal("edge", "office")
    for number in range(100, 200):
        edge.send(number.to_bytes(2))
    assert [int.from_bytes(office.recv(2)) for _ in range(200)] == list(range(200))


def test_a_share_is_lost_one_way(
    network: Emulation, datagrams: tuple[socket.socket, socket.socket]
) -> None:
    edge, office = datagrams
    network.slow("edge", rtt_s=0)
    network.lose("edge", "office", share=0.25, both=False)
    before = network.counts().passed
    for _ in range(2000):
        edge.send(b"there")
        office.send(b"back")
    there, back = ("edge", "office"), ("office", "edge")
    deadline_s = time.monotonic() + PATIENCE_S
    read = returned = 0
    while (read < 2000 or returned < 2000) and time.monotonic() < deadline_s:
        after = network.counts().passed
        lost = after[there].lost - before[there].lost
        read = after[there].packets - before[there].packets + lost
        returned = after[back].packets - before[back].packets
    assert read >= 2000
    assert returned >= 2000
    assert abs(lost / read - 0.25) < 5 * (0.25 * 0.75 / read) ** 0.5
    assert after[back].lost == before[back].lost


def test_a_limit_holds_and_a_full_queue_refuses(
    network: Emulation, datagrams: tuple[socket.socket, socket.socket]
) -> None:
    edge, office = datagrams
    network.limit("edge", "office", bytes_per_s=100_000)
    full = network.counts().passed["edge", "office"].full
    start_s = time.monotonic()
    for _ in range(40):
        edge.send(bytes(972))  # 1000 with headers
    office.settimeout(0.5)
    received = 0
    with suppress(TimeoutError):
        while True:
            received += len(office.recv(2000)) + 28
            taken_s = time.monotonic() - start_s
    # What waits at most 0.1 s passes: ten packets, and one more where the last of them waits less
    # by the moment that passed since the first came.
    assert received >= 10_000
    assert taken_s >= received / 100_000
    refused = network.counts().passed["edge", "office"].full - full
    assert refused == 40 - received // 1000
    assert refused > 0


@pytest.mark.parametrize("lossy", [False, True], ids=["whole", "cut-up"])
def test_tcp_delivers_every_byte_at_a_sane_rate(network: Emulation, lossy: bool) -> None:
    sent = np.random.default_rng(1).bytes(8_000_000 if lossy else 64_000_000)
    if lossy:
        network.lose("edge", "office", share=1e-4)
    received = bytearray()
    with network.open_socket("office") as listener, network.open_socket("edge") as client:
        listener.bind((network.addresses["office"], 0))
        listener.listen()
        client.connect(listener.getsockname())
        server, _ = listener.accept()

        def read() -> None:
            while chunk := server.recv(1 << 18):
                received.extend(chunk)

        reader = threading.Thread(target=read)
        reader.start()
        start_s = time.monotonic()
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        reader.join()
        taken_s = time.monotonic() - start_s
        server.close()
    assert received == sent
    # In pieces of 1,448 bytes and with what congestion control makes of a loss, else whole.
    assert 8 * len(sent) / taken_s > (2e6 if lossy else 50e6)
