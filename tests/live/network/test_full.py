"""A disk that is full."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from clients import Clients
from fetching import Fetching
from figures import write
from ring import Ring

Send = Callable[..., Clients]
DISK_BYTES = 4_000_000


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Put a folder onto a disk of its own."""
    folder.mkdir(exist_ok=True)
    options = f"size={DISK_BYTES},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "inferway", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(file: Path, leave: int) -> None:
    """Write until so many bytes are left."""
    free = shutil.disk_usage(file.parent).free
    file.write_bytes(bytes(max(0, free - leave)))


def test_a_full_disk_costs_no_request_and_no_state(ring: Ring, send: Send, tmp_path: Path) -> None:
    ring.up.terminate("left")
    shutil.rmtree(ring.folder("left"))
    with small_disk(ring.folder("left")) as disk, Fetching(ring, "left", tmp_path) as fetching:
        fetching.serve(fetching.content)
        # Too little for the model, enough for the state.
        fill(disk / "filler", 600_000)
        ring.up.start("left")
        ring.until("edge", lambda said: "left" in said["alive"])
        clients = send(13.0)
        ring.until("left", lambda said: bool(said["failures"]))
        reasons = [one["reason"] for one in ring.ask("left")["failures"]]
        clients.at(3.0)
        fill(disk / "more", 0)
        freed_s = clients.at(8.0)
        full = ring.ask("left")
        for name in ("filler", "more"):
            (disk / name).unlink()
        loaded_s = ring.until("left", lambda said: bool(said["running"]))
        ring.until("left", lambda said: said["slots"] >= full["slots"] + 2)
        answers = clients.answers()
        unsaved = ring.log("left").count("the state was not saved")
        slot = ring.ask("left")["slot"]
        ring.up.kill("left")
        saved = ring.saved("left")
        assert saved is not None
        kept = int(saved.random)
        ring.up.start("left")
        went_on = f'"slot": {kept}' in ring.log("left").rpartition("goes on")[0][-500:]
        ring.up.terminate("left")
    figures = answers.summary() | {
        "reasons": sorted(set(reasons)),
        "unsaved": unsaved,
        "loaded_s": loaded_s - freed_s,
        "used_most": ring.used_most(clients.begun_s),
        "state_intact": kept >= slot - 1 and went_on,
    }
    write("a full disk", figures)
    assert full["running"] == {}
    assert unsaved > 0
    assert answers.answered.all(), figures["failures"]
    assert figures["state_intact"]
    assert max(figures["used_most"].values()) <= 1.0
