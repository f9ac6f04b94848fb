"""A neighbor that answers garbage, on the peer port and on the control plane."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
from clients import Clients
from figures import write
from ring import Ring
from stranger import PIECES, Stranger, pester

Send = Callable[..., Clients]


def listening(ring: Ring, node: str, port: int) -> socket.socket:
    """Listen on a node."""
    wire = ring.network.open_socket(node)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    wire.bind((ring.network.addresses[node], port))
    wire.listen(64)
    return wire


def test_garbage_on_the_peer_port_is_routed_around(ring: Ring, send: Send, tmp_path: Path) -> None:
    # The left node lives and offers; who answers in its place where requests go is another.
    other_port = 9003
    stranger = Stranger(listening(ring, "left", other_port))
    addresses = json.loads(ring.up.addresses_file.read_text())
    addresses["left"]["peer"] = f"{ring.network.addresses['left']}:{other_port}"
    file = tmp_path / "addresses.json"
    file.write_text(json.dumps(addresses))
    ring.up.terminate("edge")
    ring.otherwise("edge", addresses=file)
    try:
        ring.up.start("edge")
        clients = send(7.0)
        answers = clients.answers()
    finally:
        stranger.close()
    settled = answers.between(clients.begun_s + 2.0, np.inf)
    figures = answers.summary() | {
        "recovered_s": answers.recovered_s(clients.begun_s),
        "met": stranger.met,
        "used_most": ring.used_most(clients.begun_s),
    }
    write("garbage on the peer port", figures)
    assert stranger.met > 0
    assert answers.answered.all(), figures["failures"]
    assert (answers.paths[settled] == "edge,right,cloud").any()
    assert max(figures["used_most"].values()) <= 1.0


def test_garbage_on_the_control_plane_is_not_heard(ring: Ring, send: Send) -> None:
    ring.up.terminate("right")
    right = ring.up.addresses["right"]
    ports = [int(one.rpartition(":")[2]) for one in (right.control, right.peer, right.http)]
    stranger = Stranger(*(listening(ring, "right", port) for port in ports))
    clients = send(7.0)
    try:
        clients.at(2.0)
        for node in ("edge", "cloud"):
            for port in ports:
                wires = [ring.network.open_socket("right") for _ in PIECES]
                pester(wires, (ring.network.addresses[node], port))
        answers = clients.answers()
        met = stranger.met
    finally:
        stranger.close()
    said = ring.ask("edge")
    figures = answers.summary() | {
        "met": met,
        "used_most": ring.used_most(clients.begun_s),
    }
    write("garbage on the control plane", figures)
    assert met > 0
    assert said["alive"] == ["left"]
    assert answers.answered.all(), figures["failures"]
    assert max(figures["used_most"].values()) <= 1.0
