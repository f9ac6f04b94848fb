"""A node that is asked to end (SIGTERM) in the middle of everything."""

from __future__ import annotations

from collections.abc import Callable

from clients import Clients
from figures import write
from ring import Ring

Send = Callable[..., Clients]


def test_a_transit_node_that_is_asked_to_end_loses_nothing(ring: Ring, send: Send) -> None:
    clients = send(12.0)
    asked_s = clients.at(3.0)
    ring.up.terminate("left")
    gone_s = clients.at(7.0)
    code = ring.up.nodes["left"].code
    ring.up.start("left")
    answers = clients.answers()
    figures = answers.summary() | {
        "recovered_s": answers.recovered_s(asked_s, gone_s),
        "back_s": answers.recovered_s(gone_s),
        "used_most": ring.used_most(clients.begun_s),
    }
    write("SIGTERM of a transit node", figures)
    assert code == 0
    assert answers.answered.all(), figures["failures"]
    assert (answers.paths[answers.between(gone_s - 1.0, gone_s)] == "edge,right,cloud").any()
    assert max(figures["used_most"].values()) <= 1.0
