"""Links that are cut, healed and slowed down while programs run."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from inferway.lab import Controls, Emulation, EmulationError


def test_a_cut_is_silent_takes_what_is_on_the_way_and_heals(
    network: Emulation, datagrams: tuple[socket.socket, socket.socket]
) -> None:
    edge, office = datagrams
    network.slow("edge", "office", rtt_s=0.4)
    edge.send(b"on the way")
    network.counts()  # the relay takes what was sent before, or sees the cut first: lost both ways
    network.cut("edge", "office")
    edge.send(b"after the cut")
    office.settimeout(0.5)
    with pytest.raises(TimeoutError):
        office.recv(100)
    network.heal("edge", "office")
    edge.send(b"healed")
    assert office.recv(100) == b"healed"


def test_a_connection_outlives_a_cut(network: Emulation) -> None:
    with network.open_socket("cloud") as listener, network.open_socket("office") as client:
        listener.bind((network.addresses["cloud"], 0))
        listener.listen()
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        with server:
            network.cut("cloud")
            client.send(b"sent while cut")
            server.settimeout(0.3)
            with pytest.raises(TimeoutError):
                server.recv(100)
            network.heal("cloud")
            server.settimeout(20)
            assert server.recv(100) == b"sent while cut"


def test_a_node_is_cut_off_on_all_sides_and_others_are_not(
    network: Emulation, connect_s: Callable[..., list[float]]
) -> None:
    network.cut("cloud")
    assert connect_s(network, "edge", "office")[0] < 1
    network.heal("cloud")
    network.cut("office")
    before = network.counts().passed
    for one, other in (("edge", "office"), ("office", "cloud")):
        with network.open_socket(one, kind=socket.SOCK_DGRAM) as sender:
            sender.sendto(b"lost", (network.addresses[other], 9))
    after = network.counts().passed
    assert [after[pair].packets for pair in after] == [before[pair].packets for pair in after]
    assert after["edge", "office"].lost > before["edge", "office"].lost
    assert after["office", "cloud"].lost > before["office", "cloud"].lost


def test_one_way_only(network: Emulation, datagrams: tuple[socket.socket, socket.socket]) -> None:
    edge, office = datagrams
    network.cut("edge", "office", both=False)
    edge.send(b"lost")
    office.send(b"heard")
    assert edge.recv(100) == b"heard"
    office.settimeout(0.2)
    with pytest.raises(TimeoutError):
        office.recv(100)


def test_slow_both_ways_from_another_process(
    network: Emulation, connect_s: Callable[..., list[float]]
) -> None:
    with Controls(network.name) as controls:
        controls.slow("edge", "office", rtt_s=0.15)
    assert connect_s(network, "edge", "office")[0] >= 0.15
    network.heal()
    assert connect_s(network, "edge", "office")[0] < 0.15


def test_a_command_knows_the_nodes_and_ends_as_itself(network: Emulation) -> None:
    program = (
        "import os, socket\n"
        "print(os.getpid(), socket.gethostbyname('office'), socket.gethostbyname('localhost'))\n"
        "print(*sorted(name for _, name in socket.if_nameindex()))\n"
        "raise SystemExit(3)"
    )
    with subprocess.Popen(
        network.command("edge", ["python3", "-c", program]), stdout=subprocess.PIPE, text=True
    ) as process:
        told, _ = process.communicate(timeout=30)
    assert process.returncode == 3
    assert told.split() == [
        str(process.pid),
        network.addresses["office"],
        "127.0.0.1",
        "lo",
        "node0",
    ]


def test_a_command_that_is_not_there(network: Emulation) -> None:
    done = subprocess.run(
        network.command("edge", ["no-such-program"]), capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert done.stderr == "cannot run no-such-program: No such file or directory\n"


def test_refusals(network: Emulation) -> None:
    refused = [
        (lambda: network.cut("edge", "cloud"), "there is no link between edge and cloud"),
        (lambda: network.cut("moon"), "there is no node moon"),
        (lambda: network.cut(), "name the link or the node"),
        (lambda: network.cut("edge", both=False), "name the two ends of a link"),
        (lambda: network.slow("edge", rtt_s=-1), "a round-trip time is 0 or more, not -1"),
        (lambda: network.lose("edge", share=1.5), "a share of 1.5 cannot be lost"),
        (lambda: network.limit("edge", bytes_per_s=float("nan")), "not nan"),
        (lambda: network.command("moon", ["true"]), "there is no node moon; there are edge, of"),
        (lambda: Controls("nosuch"), "no emulated network called nosuch"),
    ]
    for act, sentence in refused:
        with pytest.raises(EmulationError, match=sentence):
            act()
    assert network.alive


def test_nonsense_at_the_socket_is_answered(network: Emulation) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(Path("/run/inferway") / network.name / "control"))
        for nonsense in (b"{\n", b"[]\n", b'{"do": "explode"}\n', b"\xff\n"):
            stranger.send(nonsense)
            assert b"error" in stranger.recv(1000)
        stranger.send(b"half a line")
    assert network.counts().cpu_s > 0
