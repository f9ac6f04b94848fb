"""Runs that are cut off anywhere go on to the last digit, and what they leave can be read."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from burst import SMALL, control

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'inferway[learn]'")

from inferway.files import alone  # noqa: E402
from inferway.learning import training  # noqa: E402
from inferway.learning.ppo import DivergenceError  # noqa: E402
from inferway.learning.training import (  # noqa: E402
    CHECKPOINT,
    POLICY,
    Trained,
    TrainingProgress,
    read_checkpoint,
    train,
    write_checkpoint,
)
from inferway.scheduling.neural_policy import read  # noqa: E402

LONG = replace(SMALL, slots=40_000)
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from burst import control
from test_training import LONG
from inferway.learning.training import train
train(control(), LONG, Path(sys.argv[2]), seed=4, tensorboard=False, evaluation_slots=2000,
      checkpoint_every_s=float(sys.argv[3]))
"""


def short(out: Path, settings: Any = SMALL, **changes: Any) -> Trained:
    options: dict[str, Any] = {"seed": 4, "tensorboard": False, "evaluation_slots": 2_000}
    return train(control(), settings, out, **(options | changes))


def numbers(out: Path) -> list[list[str]]:
    """The curve without what the clock says."""
    with (out / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    return [[value for name, value in row.items() if name != "cpu_s"] for row in rows]


def weights(out: Path) -> list[Any]:
    network = read(out / POLICY)
    return [*network.weights, *network.biases]


def same(one: Path, other: Path) -> None:
    assert numbers(one) == numbers(other)
    for a, b in zip(weights(one), weights(other), strict=True):
        np.testing.assert_array_equal(a, b)


def start(out: Path, every_s: float) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    here = str(Path(__file__).parent)
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, here, str(out), str(every_s)],
        env=environment,
        stderr=subprocess.PIPE,
    )


def wait_for_lines(process: subprocess.Popen[bytes], out: Path, lines: int) -> None:
    curve, deadline = out / "curve.csv", time.monotonic() + 500
    while not curve.exists() or len(curve.read_bytes().splitlines()) < lines:
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing cut off."""
    out = tmp_path_factory.mktemp("whole")
    short(out, LONG)
    return out


def test_goes_on_after_kill_9(tmp_path: Path, whole: Path) -> None:
    cut = tmp_path / "cut"
    chance = random.Random()
    process = start(cut, 0.05)
    wait_for_lines(process, cut, chance.randrange(3, 15))
    time.sleep(chance.random() * 0.05)
    process.kill()
    process.communicate(timeout=300)
    known = read_checkpoint(cut)
    assert known is None or int(known[1]["slots"]) < LONG.slots
    short(cut, LONG)
    same(cut, whole)


def test_ctrl_c_keeps_what_is_there(tmp_path: Path, whole: Path) -> None:
    process = start(tmp_path / "cut", 1e9)
    wait_for_lines(process, tmp_path / "cut", 3)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=300)
    assert (process.returncode, complaint) == (0, b"")
    found = read_checkpoint(tmp_path / "cut")
    assert found is not None
    slots = int(found[1]["slots"])
    assert 0 < slots < LONG.slots
    assert read(tmp_path / "cut" / POLICY).about.slots == slots
    short(tmp_path / "cut", LONG)
    same(tmp_path / "cut", whole)


EVALUATED = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from burst import SMALL, control
from inferway.learning.training import train
found = train(control(), SMALL, Path(sys.argv[2]), seed=4, tensorboard=False,
              evaluation_slots=10**12, progress=lambda now: print(now.evaluating, flush=True))
print(found.tally, found.evaluated, found.finished)
"""


def test_ctrl_c_in_the_evaluation_leaves_the_policy(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", EVALUATED, here, str(tmp_path / "cut")],
        env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "True\n":
            break
    about = read(tmp_path / "cut" / POLICY).about
    assert (about.slots, about.result) == (SMALL.slots, {})
    process.send_signal(signal.SIGINT)
    said, complaint = process.communicate(timeout=300)
    assert (process.returncode, said, complaint) == (0, "None 0 True\n", "")
    short(tmp_path / "whole")
    # The same call has nothing left to train, and evaluates.
    found = short(tmp_path / "cut")
    assert found.whole().evaluated == 2_000
    same(tmp_path / "cut", tmp_path / "whole")
    figures = read(tmp_path / "cut" / POLICY).about.result
    assert figures == read(tmp_path / "whole" / POLICY).about.result != {}


def test_an_evaluation_that_fails_leaves_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("no slots")

    monkeypatch.setattr(training, "evaluate", failing)
    with pytest.raises(RuntimeError, match=r"policy\.npz, but evaluating it failed: no slots"):
        short(tmp_path)
    assert read(tmp_path / POLICY).about.slots == SMALL.slots


def test_figures_of_a_policy_outlast_a_second_evaluation_that_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    short(tmp_path)
    before = (tmp_path / POLICY).read_bytes()
    monkeypatch.setattr(training, "evaluate", interrupted)
    assert short(tmp_path).tally is None
    assert (tmp_path / POLICY).read_bytes() == before
    longer = short(tmp_path, replace(SMALL, slots=10_000))
    assert (longer.tally, read(tmp_path / POLICY).about.slots) == (None, 10_000)
    with pytest.raises(KeyboardInterrupt):
        longer.whole()


def test_a_policy_of_another_training_that_is_as_long_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    short(tmp_path)
    (tmp_path / CHECKPOINT).unlink()
    monkeypatch.setattr(training, "evaluate", interrupted)
    assert short(tmp_path, seed=5).tally is None
    about = read(tmp_path / POLICY).about
    assert (about.slots, about.seed, about.result) == (SMALL.slots, 5, {})


def test_more_slots_go_on_with_the_same_training(tmp_path: Path) -> None:
    short(tmp_path / "parts", replace(SMALL, slots=4_000))
    again = short(tmp_path / "parts", SMALL)
    short(tmp_path / "whole", SMALL)
    same(tmp_path / "parts", tmp_path / "whole")
    assert (again.slots, again.finished) == (8_000, True)
    done = short(tmp_path / "parts", SMALL)
    assert (done.slots, np.isnan(done.slots_per_cpu_s)) == (8_000, True)


def test_another_training_is_not_gone_on_with(tmp_path: Path) -> None:
    short(tmp_path, replace(SMALL, slots=2_000))
    before = (tmp_path / CHECKPOINT).read_bytes()
    with pytest.raises(ValueError, match=r"another training: sigma \(0.698 there, 0.5 now\)"):
        short(tmp_path, replace(SMALL, sigma=0.5))
    with pytest.raises(ValueError, match=r"seed \(4 there, 5 now\)"):
        short(tmp_path, seed=5)
    with pytest.raises(ValueError, match="sees_phase"):
        train(control(sees_phase=True), SMALL, tmp_path, seed=4, tensorboard=False)
    scheduled = replace(SMALL, slots=2_000, final_rate=0.1)
    short(tmp_path / "scheduled", scheduled)
    with pytest.raises(ValueError, match="slots"):
        short(tmp_path / "scheduled", replace(scheduled, slots=4_000))
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_divergence_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short(tmp_path, replace(SMALL, slots=4_000))
    good = (tmp_path / CHECKPOINT).read_bytes()
    from inferway.learning.site import SlottedSites

    step = SlottedSites.step

    def spoiled(self: SlottedSites, *decisions: Any) -> Any:
        rewards = step(self, *decisions).copy()
        rewards[2] = np.nan
        return rewards

    monkeypatch.setattr(SlottedSites, "step", spoiled)
    with pytest.raises(DivergenceError, match=r"checkpoint\.npz is kept, of 4,000 slots"):
        short(tmp_path, SMALL)
    assert (tmp_path / CHECKPOINT).read_bytes() == good


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    short(tmp_path, replace(SMALL, slots=2_000))
    path = tmp_path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:5_000])
    with pytest.raises(ValueError, match=r"checkpoint\.npz is not a checkpoint"):
        short(tmp_path)


def test_a_checkpoint_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"schema": 1}, {"slots": np.array(2_000)})
    with pytest.raises(ValueError, match=r"checkpoint\.npz is of another version of inferway"):
        short(tmp_path)


def test_a_folder_is_held_by_one_training(tmp_path: Path) -> None:
    refused = pytest.raises(RuntimeError, match="another training writes to")
    with alone(tmp_path, "training"), refused:
        short(tmp_path)


def test_what_is_left_can_be_read(tmp_path: Path) -> None:
    told: list[TrainingProgress] = []
    trained = train(
        control(sees_phase=True, batches=True),
        SMALL,
        tmp_path,
        task="recognise",
        seed=4,
        command="inferway train",
        evaluation_slots=2_000,
        evaluate_every=2,
        progress=told.append,
    )
    about = read(trained.policy).about
    assert (about.policy, about.task, about.phases) == ("rl-fo-b", "recognise", 2)
    assert (about.slots, about.seed, about.command) == (8_000, 4, "inferway train")
    assert about.result["goodput"] == trained.to_json()["goodput"]
    *trained_for, evaluation = told
    assert [one.slots for one in trained_for] == [2_000, 4_000, 6_000, 8_000]
    assert [one.evaluating for one in told] == [False] * 4 + [True]
    assert evaluation.share == 1.0
    assert told[1].seconds_left > 0
    rows = numbers(tmp_path)
    assert len(rows) == 4
    with (tmp_path / "curve.csv").open() as file:
        evaluated = [row["evaluated_goodput"] for row in csv.DictReader(file)]
    assert [value == "nan" for value in evaluated] == [True, False, True, False]
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_policy_is_what_was_trained(tmp_path: Path) -> None:
    """The exported file, run by the code that serves, says what the actor says."""
    from inferway.learning.ppo import Learner
    from inferway.learning.site import SlottedSites

    short(tmp_path)
    learner = Learner(control(), SMALL, seed=4)
    found = read_checkpoint(tmp_path)
    assert found is not None
    learner.restore(found[1])
    sites = SlottedSites(control(), count=30, seed=1)
    sites.step(np.full((30, 4), 0.25), None)
    outputs = read(tmp_path / POLICY).forward(sites.observation)
    routing = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    np.testing.assert_allclose(routing, learner.actor.deployed(sites.observation)[0], rtol=1e-5)


def test_training_starts_from_another_policy(tmp_path: Path) -> None:
    short(tmp_path / "first")
    short(tmp_path / "second", replace(SMALL, slots=2_000, learning_rate=1e-12),
          start=tmp_path / "first" / POLICY)  # fmt: skip
    for a, b in zip(weights(tmp_path / "first"), weights(tmp_path / "second"), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)
    with pytest.raises(ValueError, match="layers of other sizes"):
        short(tmp_path / "third", replace(SMALL, hidden=(16, 9)),
              start=tmp_path / "first" / POLICY)  # fmt: skip


def test_importing_the_package_does_not_import_pytorch() -> None:
    code = "import sys, inferway.learning; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
