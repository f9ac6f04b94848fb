from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from inferway.dispatch import Dispatcher
from inferway.dispatch.recording import Recording
from inferway.site import Fleet
from inferway.studies.live.policies import replayed, twin_table

FILE = """
tasks:
  words:
    accuracy_target: 0.75
    variants:
      small: {accuracy: 0.7, service: {mean: 10 ms}}
      large: {accuracy: 0.9, service: {mean: 40 ms}}
nodes: {here: {instances: {words/small: 1, words/large: 1}}}
dispatch: {policy: fastest-only}
"""


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[Path, Path]:
    """A file, and a server of it that had 200 requests, each answered after 20 ms."""
    file = tmp_path / "words.yaml"
    file.write_text(FILE)
    fleet = Fleet(
        ("small", "large"),
        np.array([100.0, 25.0]),
        np.array([0.7, 0.9]),
        np.array([1, 1]),
        task="words",
        node="here",
    )
    dispatcher = Dispatcher(fleet, "fastest-only", target=0.75, rate_per_s=10.0)
    recording = Recording(dispatcher, tmp_path / "recording" / "words")
    for step in range(200):
        server = recording.arrive(0.1 * step, step)
        recording.finish(server, 0.1 * step + 0.02, 0.01)
    recording.close()
    return file, tmp_path / "recording"


def test_a_recorded_run_is_simulated(recorded: tuple[Path, Path]) -> None:
    file, recording = recorded
    found, warnings = replayed("words", {"fastest-only": file}, {"fastest-only": recording})
    assert warnings == []
    (trace,) = found.values()
    assert trace["live"]["response_time_s"]["mean"] == pytest.approx(0.02)
    assert trace["twin"]["response_time_s"]["mean"] == pytest.approx(0.02, rel=0.01)
    assert trace["profiled"]["response_time_s"]["mean"] == pytest.approx(0.01, rel=0.01)
    assert abs(trace["error"]["mean"]) < 0.01
    assert trace["error"]["accuracy"] == pytest.approx(0.0, abs=1e-9)
    shown = io.StringIO()
    Console(file=shown, width=80).print(twin_table({"fastest-only": trace, "priced": trace}))
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any("fastest-only" in line and "20.0" in line for line in lines)


def test_what_cannot_be_simulated_is_a_warning(recorded: tuple[Path, Path]) -> None:
    file, folder = recorded
    found, (warning,) = replayed("words", {"priced": file}, {"priced": folder / "nothing"})
    assert found == {}
    assert "the twin of priced could not be run" in warning
    assert "holds no recording" in warning
