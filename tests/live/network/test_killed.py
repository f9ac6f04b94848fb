"""Nodes that are killed in the middle of everything (SIGKILL), and started again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from clients import Answers, Clients
from figures import write
from ring import Ring

from inferway.live.node.plan import plan_of

Send = Callable[..., Clients]


def remembered(ring: Ring, node: str, slot: int) -> dict[str, Any]:
    """Check what a killed node has kept; returns what is to be seen again.

    Parameters
    ----------
    ring
        The nodes.
    node
        That was killed.
    slot
        The last that it has spoken of.
    """
    saved = ring.saved(node)
    assert saved is not None
    plan = plan_of(ring.deployment, node)
    pairs = plan.deployed.network.pairs
    size = pairs.size[pairs.first[plan.number] : pairs.first[plan.number + 1]]
    y = saved.infida.y
    assert ((y >= 0) & (y <= 1)).all()
    # But for the millionth of a copy that is always kept of each.
    assert (size * y).sum() <= plan.budget_bytes + 2e-6 * size.sum()
    # It speaks of a slot before that is on the disk.
    kept = int(saved.random)
    assert slot - 1 <= kept <= slot + 1
    return {"slot": kept, "y": y}


def killed(ring: Ring, node: str, clients: Clients, at_s: float, again_s: float) -> dict[str, Any]:
    """Kill a node and start it again; returns when, and what it has kept."""
    killed_s = clients.at(at_s)
    slot = ring.ask(node)["slot"]
    ring.up.kill(node)
    kept = remembered(ring, node, slot)
    started_s = clients.at(again_s)
    said = ring.log(node)
    ring.up.start(node)
    new = ring.log(node)[len(said) :]
    assert f'"slot": {kept["slot"]}' in new, new
    assert '"event": "goes on"' in new
    ready_s = ring.until(node, lambda told: told["ready"])
    return {"killed_s": killed_s, "started_s": started_s, "ready_s": ready_s}


def figures_of(ring: Ring, answers: Answers, times: dict[str, Any]) -> dict[str, Any]:
    return answers.summary() | {
        "recovered_s": answers.recovered_s(times["killed_s"], times["started_s"]),
        "ready_s": times["ready_s"] - times["started_s"],
        "back_s": answers.recovered_s(times["started_s"]),
        "used_most": ring.used_most(answers.begun_s),
        "state_intact": True,
    }


def test_a_killed_transit_node_is_routed_around(ring: Ring, send: Send) -> None:
    clients = send(13.0)
    times = killed(ring, "left", clients, 3.0, 6.0)
    answers = clients.answers()
    figures = figures_of(ring, answers, times)
    write("kill -9 of a transit node", figures)
    # What was inside the process that died has been given to another: the task is idempotent.
    assert answers.answered.all(), figures["failures"]
    assert figures["recovered_s"] < 2.0
    assert figures["back_s"] < 2.0
    around = answers.between(times["killed_s"] + 2.0, times["started_s"])
    assert (answers.paths[around] == "edge,right,cloud").any()
    assert max(figures["used_most"].values()) <= 1.0


def test_a_killed_entry_node_goes_on_where_it_stopped(ring: Ring, send: Send) -> None:
    clients = send(13.0)
    times = killed(ring, "edge", clients, 3.0, 4.5)
    answers = clients.answers()
    figures = figures_of(ring, answers, times) | {
        "recovered_s": answers.recovered_s(times["killed_s"]),
        "refusing_s": times["ready_s"] - times["killed_s"],
    }
    write("kill -9 of the entry node", figures)
    # Whoever asks a node that is not there is told by the kernel; one that begins says so itself.
    assert figures["silent"] == 0
    refused = np.flatnonzero((answers.outcome.columns["status"] != 0) & ~answers.answered)
    assert (answers.outcome.columns["status"][refused] == 503).all(), figures["failures"]
    assert (answers.due_s[refused] < times["ready_s"]).all()
    assert answers.answered[answers.between(times["ready_s"] + 1.0, np.inf)].all()
    assert max(figures["used_most"].values()) <= 1.0
