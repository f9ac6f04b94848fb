"""Trainings from several seeds: each as one training alone, whoever computes it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from burst import FILE, SMALL, control

torch: Any = pytest.importorskip("torch", reason="needs PyTorch: pip install 'inferway[learn]'")

from inferway.cli import main  # noqa: E402
from inferway.experiments import seeds as several  # noqa: E402
from inferway.experiments.seeds import TrainedSeeds, train_seeds  # noqa: E402
from inferway.experiments.workers import Workers  # noqa: E402
from inferway.learning.settings import Settings  # noqa: E402
from inferway.learning.training import (  # noqa: E402
    CHECKPOINT,
    POLICY,
    TrainingProgress,
    read_checkpoint,
    train,
)
from inferway.scheduling.neural_policy import read  # noqa: E402

HERE = Workers("here")


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every stretch be one update."""
    monkeypatch.setattr(several, "FIRST_S", 0.0)
    monkeypatch.setattr(several, "STRETCH_S", 0.0)


def trained(
    out: Path, who: Workers = HERE, settings: Settings = SMALL, **more: Any
) -> TrainedSeeds:
    asked = {"seeds": (4, 5), "evaluation_slots": 2_000, "task": "recognise", **more}
    return train_seeds(control(), settings, out, who=who, **asked)


def same(one: Path, other: Path) -> bool:
    """Whether two folders have the same training, to the last digit."""
    checkpoints = read_checkpoint(one), read_checkpoint(other)
    assert checkpoints[0] is not None
    assert checkpoints[1] is not None
    curves = [
        [line.rpartition(",")[0] for line in (folder / "curve.csv").read_text().splitlines()]
        for folder in (one, other)
    ]
    return curves[0] == curves[1] and all(
        np.array_equal(array, checkpoints[1][1][name]) for name, array in checkpoints[0][1].items()
    )


def test_each_seed_is_the_training_that_it_is_alone(tmp_path: Path) -> None:
    found = trained(tmp_path / "all")
    alone = train(
        control(), SMALL, tmp_path / "alone", task="recognise", seed=5, evaluation_slots=2_000
    )
    assert same(tmp_path / "all" / "seed-5", tmp_path / "alone")
    assert not same(tmp_path / "all" / "seed-4", tmp_path / "alone")
    told = found.seeds[1].to_json()
    assert told["goodput"] == alone.tally.overall_goodput
    assert (told["slots"], told["finished"]) == (SMALL.slots, True)
    # What one training leaves is what seeds go on with, and the other way round.
    again = train(
        control(),
        SMALL,
        tmp_path / "all" / "seed-5",
        task="recognise",
        seed=5,
        evaluation_slots=200,
    )
    assert again.slots == SMALL.slots


def test_the_best_is_exported_with_figures_that_it_was_not_chosen_by(tmp_path: Path) -> None:
    found = trained(tmp_path, seeds=(4, 5, 6))
    goodput = {one.seed: one.to_json()["goodput"] for one in found.seeds}
    assert found.best_seed == max(goodput, key=lambda seed: goodput[seed])
    assert found.best is not None
    policy, own = (read(tmp_path / one / POLICY) for one in ("", f"seed-{found.best_seed}"))
    assert found.best.policy == tmp_path / POLICY
    assert all(map(np.array_equal, policy.weights, own.weights))
    assert own.about.result["goodput"] == goodput[found.best_seed]
    assert policy.about.result["goodput"] == found.best.tally.overall_goodput != goodput[4]
    assert found.best.tally.overall_goodput not in goodput.values()
    spread = found.spread()["goodput"]
    assert spread["least"] == min(goodput.values())
    assert spread["greatest"] == max(goodput.values())
    assert spread["deviation"] == pytest.approx(np.std([*goodput.values()], ddof=1))
    words = str(found)
    assert words.startswith(f"rl-po of seed {found.best_seed} after 8,000 slots:")
    assert "goodput of 3 seeds: " in words


def test_ctrl_c_keeps_what_had_ended_and_the_same_call_goes_on(tmp_path: Path) -> None:
    heard: list[int] = []

    def interrupt(now: TrainingProgress) -> None:
        heard.append(now.slots)
        if len(heard) == 3:
            raise KeyboardInterrupt

    cut = trained(tmp_path / "cut", progress=interrupt)
    assert heard == [2_000, 4_000, 6_000]
    assert [one.slots for one in cut.seeds] == [4_000, 2_000]
    assert not cut.finished
    assert not (tmp_path / "cut" / POLICY).exists()
    told = json.loads(json.dumps(cut.to_json()))
    assert (told["policy"], told["finished"], told["slots"]) == (None, False, 6_000)
    resumed: list[int] = []
    whole = trained(tmp_path / "cut", progress=lambda now: resumed.append(now.slots))
    assert resumed[0] == 8_000
    assert whole.finished
    trained(tmp_path / "whole")
    for seed in (4, 5):
        assert same(tmp_path / "cut" / f"seed-{seed}", tmp_path / "whole" / f"seed-{seed}")


def test_one_that_diverges_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inferway.learning.ppo import DivergenceError, Learner

    update = Learner.update

    def diverging(self: Learner) -> Any:
        if self.random.bit_generator.seed_seq.entropy[0] == 5:  # type: ignore[attr-defined]
            raise DivergenceError("the loss is nan")
        return update(self)

    monkeypatch.setattr(Learner, "update", diverging)
    found = trained(tmp_path)
    assert found.best_seed == 4
    assert found.seeds[1].to_json()["error"] == "training failed: the loss is nan"
    assert "seed 5: training failed: the loss is nan" in str(found)
    with pytest.raises(RuntimeError, match="no seed could be trained; 5: training failed"):
        trained(tmp_path, seeds=(5,))


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="take turns: --workers processes:N"):
        trained(tmp_path, Workers("threads", 2))
    train(control(), replace(SMALL, slots=2_000), tmp_path / "one", evaluation_slots=200)
    with pytest.raises(ValueError, match="has a training of one seed"):
        trained(tmp_path / "one")
    trained(tmp_path / "two", settings=replace(SMALL, slots=2_000))
    with pytest.raises(ValueError, match="has trainings of several seeds"):
        train(control(), SMALL, tmp_path / "two", evaluation_slots=200)
    with pytest.raises(ValueError, match=r"seed-4.checkpoint\.npz is of another training: hidden"):
        trained(tmp_path / "two", settings=replace(SMALL, hidden=(8, 8)))


def test_the_command_trains_by_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OMP_WAIT_POLICY", *(f"{x}_NUM_THREADS" for x in ("OMP", "OPENBLAS", "MKL"))):
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    monkeypatch.chdir(tmp_path)
    small = ["--slots", "2e3", "--set", "slots_per_update=1000", "--set", "sites=10"]
    small += ["--set", "hidden=(8, 8)", "--set", "epochs=1", "--seed", "7"]
    command = ["train", str(FILE), *small]
    assert main([*command, "--seeds", "2", "--workers", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["tasks"]["recognise"]
    assert said["policy"] == "out/train/rl-po/policy.npz"
    assert [one["seed"] for one in said["seeds"]] == [7, 8]
    about = read(Path("out/train/rl-po/seed-8", POLICY)).about
    assert "--slots 2000 --seed 8 --set slots_per_update" in about.command
    assert main([*command, "--seed", "8", "--out", "alone"]) == 0
    assert same(Path("out/train/rl-po/seed-8"), Path("alone"))
    assert main([*command, "--workers", "2"]) == 2
    assert "--workers is for --seeds" in capsys.readouterr().err


@pytest.mark.slow
def test_ray_trains_the_same_and_ctrl_c_ends_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: the extra `ray`")
    trained(tmp_path / "here")
    ray.init(num_cpus=2, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    try:
        found = trained(tmp_path / "ray", Workers("ray"))
        assert found.finished
        for seed in (4, 5):
            assert same(tmp_path / "ray" / f"seed-{seed}", tmp_path / "here" / f"seed-{seed}")
        # Stretches that would last for hours, but for the first of each seed.
        monkeypatch.setattr(several, "STRETCH_S", 1e5)

        endless = replace(SMALL, slots=10**12, slots_per_update=2_000)
        heard: list[int] = []

        def interrupt(now: TrainingProgress) -> None:
            heard.append(now.slots)
            if len(heard) == 2:
                raise KeyboardInterrupt

        cut = trained(tmp_path / "cut", Workers("ray"), endless, progress=interrupt)
        assert not cut.finished
        deadline = time.monotonic() + 120
        while ray.available_resources().get("CPU") != 2.0:
            assert time.monotonic() < deadline, "tasks go on after Ctrl-C"
            time.sleep(0.1)
        assert (tmp_path / "cut" / "seed-4" / CHECKPOINT).exists()
    finally:
        ray.shutdown()
