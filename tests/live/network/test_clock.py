"""A wall clock that is set while a node runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clients import Clients
from figures import write
from ring import SLOT_S, Ring

Send = Callable[..., Clients]
JUMP_S = 3600


def library() -> Path | None:
    """Find what gives a process another clock."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


@pytest.mark.skipif(library() is None, reason="needs libfaketime: apt-get install faketime")
def test_a_clock_that_is_set_costs_no_request(ring: Ring, send: Send, tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0")
    ring.up.terminate("edge")
    before = (
        "env",
        f"LD_PRELOAD={library()}",
        f"FAKETIME_TIMESTAMP_FILE={clock}",
        "FAKETIME_NO_CACHE=1",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
        "DONT_FAKE_MONOTONIC=1",
    )
    ring.otherwise("edge", before=before)
    ring.up.start("edge")
    ring.until("edge", lambda said: len(said["alive"]) == 2 and len(said["offers"]) >= 4)
    clients = send(12.0)
    clients.at(3.0)
    first = ring.ask("edge")
    began_s = time.monotonic()

    def noticed() -> list[float]:
        lines = [one for one in ring.log("edge").splitlines() if "clock was set" in one]
        return [json.loads(one)["by_s"] for one in lines]

    def has_gone_on(since: dict[str, Any], times: int) -> dict[str, Any]:
        """Wait until the node has noticed so often, and has ended a slot since; what it says."""
        ring.until(
            "edge", lambda said: len(noticed()) == times and said["slots"] > since["slots"] + 1
        )
        return dict(ring.ask("edge"))

    before = len(noticed())
    clock.write_text(f"+{JUMP_S}")
    ahead = has_gone_on(first, before + 1)
    clock.write_text("+0")
    back = has_gone_on(ahead, before + 2)
    most = (time.monotonic() - began_s) / SLOT_S + 4
    answers = clients.answers()
    figures = answers.summary() | {
        "slots_ahead": ahead["slots"] - first["slots"],
        "slots_back": back["slots"] - ahead["slots"],
        "noticed_s": noticed()[-2:],
        "used_most": ring.used_most(clients.begun_s),
    }
    write(f"clock set by {JUMP_S} s, and back", figures)
    assert ahead["slot"] - first["slot"] >= JUMP_S / SLOT_S
    assert [round(by_s / JUMP_S) for by_s in figures["noticed_s"]] == [1, -1]
    # It follows the clock, and goes on to end slots at their pace.
    assert figures["slots_ahead"] + figures["slots_back"] <= most
    assert answers.answered.all(), figures["failures"]
    assert max(figures["used_most"].values()) <= 1.0
