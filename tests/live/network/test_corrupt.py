"""Model files that are not what they should be."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from clients import Clients
from fetching import Fetching
from figures import write
from ring import Ring

Send = Callable[..., Clients]


def test_a_damaged_model_is_not_loaded_and_costs_no_request(
    ring: Ring, send: Send, tmp_path: Path
) -> None:
    ring.up.terminate("left")
    shutil.rmtree(ring.folder("left") / "models")
    with Fetching(ring, "left", tmp_path) as fetching:
        damaged = bytearray(fetching.content)
        damaged[len(damaged) // 2] ^= 1
        fetching.serve(bytes(damaged))
        ring.up.start("left")
        ring.until("edge", lambda said: "left" in said["alive"])
        clients = send(11.0)
        failed_s = ring.until("left", lambda said: bool(said["failures"]))
        reasons = [one["reason"] for one in ring.ask("left")["failures"]]
        mended_s = clients.at(6.0)
        before = ring.ask("left")
        fetching.serve(fetching.content)
        loaded_s = ring.until("left", lambda said: bool(said["running"]))
        answers = clients.answers()
        asked = fetching.asked
    figures = answers.summary() | {
        "reported_s": max(0.0, failed_s - clients.begun_s),
        "reasons": sorted(set(reasons)),
        "loaded_s": loaded_s - mended_s,
        "asked": asked,
        "used_most": ring.used_most(clients.begun_s),
    }
    write("a damaged model file", figures)
    assert all("digest" in one or "damaged" in one for one in reasons), reasons
    assert before["running"] == {}
    assert answers.answered.all(), figures["failures"]
    assert max(figures["used_most"].values()) <= 1.0
    # Nothing of it has stayed.
    kept = [one.read_bytes() for one in (ring.folder("left") / "models").glob("[0-9a-f]*")]
    assert bytes(damaged) not in kept
