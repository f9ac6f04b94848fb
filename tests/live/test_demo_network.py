"""The network demo, a few slots of it: real nodes, real models, real images."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import inferway
from inferway.studies.live import compare_placements
from prepared import INTERRUPTIBLE, prepared

pytest.importorskip("zenoh", reason="nodes need the extra `network`")
pytestmark = pytest.mark.slow


def test_policies_get_the_same_requests_and_the_twins_stand_beside(tmp_path: Path) -> None:
    told: list[str] = []
    out = tmp_path / "out"
    result = compare_placements(
        out=out,
        policies=("static-greedy", "repository"),
        slots=3,
        progress=lambda doing, part: told.append(doing),
    )
    greedy, repository = result.rows
    slots = result.found["slots"]
    assert slots == len(greedy["gain_ms"]) == len(repository["gain_ms"]) == 3
    assert greedy["offered"] == repository["offered"] > 500
    assert greedy["lost"] == repository["lost"] == 0
    assert greedy["moved_bytes_per_slot"] == repository["moved_bytes_per_slot"] == 0
    assert 0 < repository["cpu_share"] < 1
    assert greedy["twin"] is not None
    assert repository["twin"] is not None
    # However busy the machine is: nobody answers sooner than the round trip takes.
    assert repository["latency_s"] > 0.067
    assert repository["ntag_ms"] < 0
    assert greedy["ntag_ms"] > repository["ntag_ms"] + 20
    assert greedy["twin"]["ntag_ms"] == pytest.approx(greedy["twin"]["slot_ntag_ms"], abs=3.0)
    # The labels of few images agree with the profiles, roughly.
    assert greedy["accuracy"] == pytest.approx(greedy["profile_accuracy"], abs=0.08)
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    requests = pd.read_parquet(out / "network-requests.parquet")
    assert requests.groupby("policy", observed=True).size().tolist() == 2 * [greedy["offered"]]
    assert set(requests.query("policy == 'repository'")["hops"]) == {3}
    frame = pd.read_parquet(out / "network-slots.parquet")
    assert len(frame) == 6
    assert frame.notna().all(axis=None)
    for path in document["files"]:
        assert Path(path).is_file()
    left = inferway.load(document["files"][-1])
    assert set(document["service_s"]) == set(left.tasks["digits"].variants)
    assert any("s left" in doing for doing in told)


def _marked(mark: str) -> list[int]:
    """Processes that were started with this in their environment, and what they started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def _eventually(condition: Callable[[], bool]) -> None:
    deadline, pause = time.monotonic() + 90.0, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        pause.wait(0.02)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_ctrl_c_stops_all_nodes(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    command = (sys.executable, "-m", "inferway", "demo", "network", "--out", str(tmp_path))
    with subprocess.Popen(
        prepared(INTERRUPTIBLE, *command),
        env=os.environ | {"INFERWAY_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            _eventually(lambda: len(_marked(mark)) >= 4)  # the demo itself, and nodes
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            assert process.returncode == 130
            _eventually(lambda: not _marked(mark))
        finally:
            process.kill()
