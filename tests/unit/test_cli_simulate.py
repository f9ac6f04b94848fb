"""``inferway simulate`` as a person runs it: recordings, sweeps, Ctrl-C, wrong input.

Where a process of its own is needed, its engine runs uncompiled: nothing has to be loaded.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from inferway.cli import main
from inferway.dispatch import Dispatcher
from inferway.dispatch.recording import Recording
from inferway.site import Fleet

FILE = """
tasks:
  words:
    accuracy_target: 0.75
    variants:
      small: {accuracy: 0.7, service: {distribution: exponential, mean: 1 s}}
      large: {accuracy: 0.9, service: {distribution: exponential, mean: 4 s}}
nodes: {here: {instances: {words/small: 4, words/large: 4}, buffer: 8}}
dispatch: {policy: tad-op}
workload: {words: {arrivals: {process: poisson, load: 0.5}}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "words.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """What a server with 100 requests of a second each left behind."""
    fleet = Fleet(
        ("small", "large"),
        np.array([1.0, 0.25]),
        np.array([0.7, 0.9]),
        np.array([4, 4]),
        buffer=8,
        task="words",
        node="here",
    )
    dispatcher = Dispatcher(fleet, "tad-op", target=0.75, rate_per_s=0.5)
    written = Recording(dispatcher, tmp_path / "recording" / "words")
    for step in range(100):
        server = written.arrive(2.0 * step, step)
        written.finish(server, 2.0 * step + 1.0, 0.9)
    written.close()
    return tmp_path / "recording"


def start(folder: Path, *arguments: str | Path) -> subprocess.Popen[str]:
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "-m", "inferway", "simulate", *map(str, arguments)]
    return subprocess.Popen(
        [*command, "--workers", "1"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in an empty folder, and take what it prints."""
    monkeypatch.chdir(tmp_path)

    def runs(*arguments: str | Path) -> str:
        assert main(["simulate", *map(str, arguments), "--workers", "1"]) == 0
        output = capsys.readouterr()
        assert output.err == ""
        return output.out

    return runs


def document(run: Run, *arguments: str | Path) -> dict[str, Any]:
    found = json.loads(run(*arguments, "--json"))
    assert isinstance(found, dict)
    return found


def test_a_recording_is_compared_with_the_twin(run: Run, file: Path, recording: Path) -> None:
    found = document(run, file, "--trace", recording, "--replications", "2")
    task = found["tasks"]["words"]
    trace = task["trace"]
    # Every service took a second, nobody waited, and the policy is the same code.
    assert trace["live"]["response_time_s"]["mean"] == pytest.approx(1.0)
    assert trace["twin"]["response_time_s"]["mean"] == pytest.approx(1.0, rel=0.01)
    assert trace["live"]["accuracy"] == pytest.approx(trace["twin"]["accuracy"], abs=0.005)
    assert abs(trace["error"]["mean"]) < 0.01
    assert abs(trace["error"]["p95"]) < 0.01
    assert trace["error"]["profiled"]["mean"] > 0.2  # exponential, of 1 s and 4 s
    assert trace["live"]["queries"] == 100
    assert task["queries"] == 200
    assert task["complete"]
    words = run(file, "--trace", recording, "--replications", "1")
    assert "live against twin" in words
    assert "100 recorded requests" in words


def test_a_sweep_is_written_drawn_and_gone_on_with(run: Run, tmp_path: Path, file: Path) -> None:
    sweep = ["--sweep", "load=0.3:0.5:0.1", "--sweep", "policy=tad,tad-op", "--queries", "500"]
    found = document(run, file, *sweep)
    assert found["network"] is None
    assert (found["sweep"]["points"], found["sweep"]["done"]) == (6, 6)
    assert found["sweep"]["keys"] == ["load", "policy"]
    rows = found["tasks"]["words"]["points"]
    assert [(row["load"], row["policy"]) for row in rows] == [
        (load, policy) for load in (0.3, 0.4, 0.5) for policy in ("tad", "tad-op")
    ]
    folder = tmp_path / "out" / "sweep-words"
    assert (folder / "sweep.png").stat().st_size > 10_000
    frame = pq.read_table(folder / "sweep.parquet").to_pandas()
    assert len(frame) == 6
    assert {"task", "response_time_s.mean", "bound.response_time_s", "shares.small"} <= set(frame)
    assert (frame["response_time_s.mean"] > 0.8 * frame["bound.response_time_s"]).all()
    sweep[1] = "load=0.3:0.6:0.1"
    words = run(file, *sweep)
    assert "6 of 8 points are from an earlier run" in words
    again = pq.read_table(folder / "sweep.parquet").to_pandas()
    assert len(again) == 8
    assert again.head(6)["response_time_s.mean"].tolist() == frame["response_time_s.mean"].tolist()
    sweep[-1] = "400"
    assert "earlier run" not in run(file, *sweep)


def test_a_point_that_cannot_be_simulated_does_not_end_the_sweep(run: Run, file: Path) -> None:
    file.write_text(FILE.replace("    accuracy_target: 0.75\n", ""))
    found = document(
        run, file, "--sweep", "policy=jiq-fast,tad-op", "--queries", "200", "--out", "x"
    )
    fine, failed = found["tasks"]["words"]["points"]
    assert fine["response_time_s.mean"] > 0
    assert "accuracy_target" in failed["error"]
    assert found["sweep"]["figure"] is None


def until(ready: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not ready.exists():
        assert process.poll() is None, "it ended before"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ctrl_c_keeps_the_points_that_are_done(tmp_path: Path, file: Path) -> None:
    slow = ["--sweep", "load=0.05:0.9:0.001", "--queries", "2000", "--out", "x", "--json"]
    with start(tmp_path, file, *slow) as process:
        until(tmp_path / "x" / "sweep.parquet", process)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on" in errors
    told = json.loads(output)["sweep"]
    assert 0 < told["done"] < told["points"] == 851
    assert pq.read_table(tmp_path / "x" / "sweep.parquet").num_rows == told["done"]


def test_ctrl_c_says_what_is_known(tmp_path: Path, file: Path) -> None:
    # A policy that tells when requests are being counted; uncompiled, it may.
    (tmp_path / "telling.py").write_text(
        "from pathlib import Path\n"
        "from typing import NamedTuple\n"
        "import numpy as np\n"
        "class Telling(NamedTuple):\n"
        "    seen: np.ndarray\n"
        "    @classmethod\n"
        "    def build(cls, fleet, *, target, rate_per_s):\n"
        "        return cls(np.zeros(1))\n"
        "    def choose(self, site, request, draw):\n"
        "        self.seen[0] += 1\n"
        "        if self.seen[0] == 5000:\n"
        f"            Path({str(tmp_path / 'counting')!r}).touch()\n"
        "        return 0 if site.open[0] else -1\n"
    )
    file.write_text(FILE.replace("tad-op", "./telling.py:Telling"))
    with start(tmp_path, file, "--queries", "64000", "--warmup", "0", "--json") as process:
        until(tmp_path / "counting", process)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == ""
    task = json.loads(output)["tasks"]["words"]
    assert 0 < task["queries"] < 64000
    assert not task["complete"]
    assert any("interrupted" in note for note in task["notes"])


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--queries", "-5"], 2, "-5 is not a whole number of at least 1"),
        (["--queries", "many"], 2, "'many' is not a number such as 5e6"),
        (["--node", "mars"], 2, "unknown node 'mars'; the file has here"),
        (["--trace", "nowhere"], 2, "nowhere holds no recording"),
        (["--trace", "x", "--queries", "5"], 2, "cannot be given together"),
        (["--sweep", "load=1,2", "--records", "x"], 2, "cannot be given together"),
        (["--sweep", "lode=1,2"], 2, "did you mean load?"),
        (["--sweep", "load=2:1:1"], 2, "does not lead from 2 to 1"),
        (["--out", "x"], 2, "give --sweep"),
        (["--policy", "tadop"], 2, "did you mean 'tad-op'?"),
    ],
)
def test_wrong_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], file: Path, options: list[str], code: int, words: str
) -> None:
    assert main(["simulate", str(file), *options]) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert words in output.err
    assert output.err.count("\n") == 1


def test_a_file_without_a_workload_has_nothing_to_simulate(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text(FILE.replace("workload:", "#"))
    assert main(["simulate", str(file)]) == 1
    assert "no `workload`" in capsys.readouterr().err
    assert main(["simulate", str(file), "--sweep", "seed=1,2"]) == 2
    assert "no `workload`" in capsys.readouterr().err
    assert main(["simulate", str(file.with_name("lost.yaml"))]) == 2


def test_a_recording_of_another_task_is_refused(
    capsys: pytest.CaptureFixture[str], file: Path, recording: Path
) -> None:
    file.write_text(FILE.replace("words", "birds"))
    assert main(["simulate", str(file), "--trace", str(recording)]) == 1
    assert "a recording of task 'words'; the file has 'birds'" in capsys.readouterr().err
