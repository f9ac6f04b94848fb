"""A neighbor whose control plane lives, and whose HTTP hangs, drips, announces or fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clients import Clients
from figures import write
from proxy import Proxy
from ring import Ring

Send = Callable[..., Clients]
RECOVERED_S = 2.0
LONGEST_S = 3.0
"""What is promised. The figures say how it was kept; a test allows several times as much."""
SLACK = 5.0
FAULTS = {
    "HTTP hangs": ("hang", "edge", "left"),
    "the peer port swallows packets": ("swallow", "edge", "left"),
    "HTTP hangs behind a relay": ("hang", "left", "cloud"),
    "answers drip": ("drip", "edge", "left"),
    "answers drip, health does not": ("drip but health", "edge", "left"),
    "more is announced than comes": ("announce", "edge", "left"),
    "more is announced than is ever read": ("announce more", "edge", "left"),
    "only health is answered": ("health alone", "edge", "left"),
    "only health is answered behind a relay": ("health alone", "left", "cloud"),
    "answers drip quickly and never end": ("drip quickly", "edge", "left"),
    "empty 500s": ("errors", "edge", "left"),
    "empty 500s, health is well": ("errors but health", "edge", "left"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_neighbor_that_lives_and_answers_nothing_right(
    ring: Ring, send: Send, tmp_path: Path, name: str
) -> None:
    fault, neighbor, node = FAULTS[name]
    with Proxy(ring, node, neighbor, tmp_path) as proxy:
        ring.until("edge", by_left)
        clients = send(15.0)
        begun_s = clients.at(4.0)
        proxy.begin(fault)
        healed_s = clients.at(10.0)
        proxy.heal()
        answers = clients.answers()
    during = answers.between(begun_s - 1.0, healed_s)
    around = np.flatnonzero(
        (answers.paths == "edge,right,cloud") & answers.between(begun_s, healed_s)
    )
    after = np.char.find(answers.paths, f"{neighbor},{node}") >= 0
    again = np.flatnonzero(after & answers.between(healed_s, np.inf))
    figures = answers.summary() | {
        "recovered_s": answers.recovered_s(begun_s, healed_s),
        "around_s": float(answers.due_s[around[0]]) - begun_s if len(around) else None,
        "longest_s": float(np.nanmax(answers.took_s[during])),
        "healed_s": answers.recovered_s(healed_s),
        "used_again_s": float(answers.due_s[again[0]]) - healed_s if len(again) else None,
        "used_most": ring.used_most(clients.begun_s),
    }
    write(name, figures)
    assert answers.answered.all(), figures["failures"]
    assert figures["recovered_s"] < SLACK * RECOVERED_S
    assert figures["longest_s"] < SLACK * LONGEST_S
    assert len(around)
    assert len(again)


def by_left(said: dict[str, Any]) -> bool:
    """Whether a node goes by its left neighbor, and hears of the repository there."""
    paths = [one["path"] for one in said["offers"]]
    return {path[0] for path in paths} == {"left"} and any(path[-1] == "cloud" for path in paths)
