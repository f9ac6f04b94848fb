"""The burst demo, a few seconds of it: real processes, real models, real images."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway.studies.live import compare_schedulers
from prepared import INTERRUPTIBLE, prepared


@pytest.mark.slow
def test_schedulers_get_the_same_requests_and_the_twin_stands_beside(tmp_path: Path) -> None:
    seen: list[float] = []
    result = compare_schedulers(
        out=tmp_path / "out",
        schedulers=("deadline", "hw"),
        duration_s=4.0,
        progress=lambda doing, part: seen.append(part),
    )
    assert seen == sorted(seen)
    deadline, heavy = result.rows
    assert deadline["offered"] == heavy["offered"]
    assert sum(deadline["offered"].values()) > 50
    late = {row["scheduler"]: row["phases"]["burst"]["violation_ratio"] for row in result.rows}
    assert heavy["phases"]["burst"]["heavy"] == 1.0
    assert deadline["phases"]["burst"]["heavy"] < 1.0
    assert late["hw"] > late["deadline"]
    for one in result.rows:
        assert one["failed"] == 0
        assert one["predicted"] is not None
    assert result.warnings == [] or "busy with other things" in result.warnings[0]
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    for path in document["figure"]:
        assert Path(path).stat().st_size > 5_000
    left = inferway.load(document["file"])
    assert left.tasks["digits"].deadline_s == document["load"]["deadline_s"]


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


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_ctrl_c_leaves_nothing_running(tmp_path: Path, until: Any) -> None:
    mark = uuid.uuid4().hex
    command = (sys.executable, "-m", "inferway", "demo", "burst", "--out", str(tmp_path))
    process = subprocess.Popen(
        prepared(INTERRUPTIBLE, *command),
        env=os.environ | {"INFERWAY_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    until(lambda: len(_marked(mark)) > 1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    until(lambda: not _marked(mark))  # who was just starting ends a moment later
