"""A node that joins a network which is at work already."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from clients import Clients
from figures import write
from ring import Ring

Send = Callable[..., Clients]


def test_a_node_that_joins_late_is_used_when_it_is_needed(ring: Ring, send: Send) -> None:
    ring.up.terminate("right")
    shutil.rmtree(ring.folder("right"))
    ring.until("edge", lambda said: said["alive"] == ["left"])
    clients = send(20.0)
    started_s = clients.at(1.0)
    ring.up.start("right")
    ready_s = ring.until("right", lambda said: said["ready"])
    joined_s = ring.until("edge", lambda said: "right" in said["alive"])
    cut_s = clients.at(16.0)
    ring.network.cut("left", "cloud")
    answers = clients.answers()
    figures = answers.summary() | {
        "ready_s": ready_s - started_s,
        "joined_s": joined_s - started_s,
        "recovered_s": answers.recovered_s(cut_s),
        "used_most": ring.used_most(clients.begun_s),
    }
    write("a node joins late", figures)
    assert answers.answered.all(), figures["failures"]
    assert figures["recovered_s"] < 2.0
    late = answers.between(cut_s + 2.0, float("inf"))
    assert (answers.paths[late] == "edge,right,cloud").any()
    assert max(figures["used_most"].values()) <= 1.0
