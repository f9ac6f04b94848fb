"""Training a scheduler: a run that can be interrupted anywhere and goes on to the last digit."""

from __future__ import annotations

import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.learning.evaluation import PhaseTally, evaluate
from inferway.learning.files import Checkpoint, about, alone, check_same, identity_of, save
from inferway.learning.settings import Settings
from inferway.learning.site import Control

if TYPE_CHECKING:
    from inferway.learning.ppo import Learner, Update


POLICY = "policy.npz"
"""The trained policy, below the folder of its training."""
_EVERY_S = 30.0


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a training."""

    slots: int
    total: int
    slots_per_s: float
    """Since this process began, by the clock on the wall."""
    goodput: float
    """Of the last update's trajectories, with the noise of training; mean of the phases."""
    violations: float
    seconds_left: float

    @property
    def share(self) -> float:
        """Of the training, 0..1."""
        return self.slots / self.total


@dataclass(frozen=True)
class Trained:
    """Outcome of a training."""

    policy: Path
    slots: int
    finished: bool
    """False after Ctrl-C; the same call goes on."""
    tally: PhaseTally
    """Of the policy as deployed, without noise, over `evaluated` slots."""
    evaluated: int
    cpu_s: float
    """CPU time of this process's part."""
    slots_per_cpu_s: float
    """NaN where there was nothing left to do."""

    def to_json(self) -> dict[str, Any]:
        """As ``inferway train --json`` has it."""
        tally = self.tally
        names = ("goodput", "violation_ratio", "heavy_share")
        phases = np.stack([tally.goodput, tally.violations, tally.heavy], axis=1).tolist()
        return {
            "policy": str(self.policy),
            "slots": self.slots,
            "finished": self.finished,
            "evaluated_slots": self.evaluated,
            "goodput": tally.overall_goodput,
            "violation_ratio": tally.overall_violations,
            "phases": [dict(zip(names, phase, strict=True)) for phase in phases],
            "cpu_s": self.cpu_s,
            "slots_per_cpu_s": self.slots_per_cpu_s,
        }


class LearningCurve:
    """``curve.csv`` in a folder that exists, and ``tensorboard`` beside it.

    Lines after so many slots are of a run that was cut off after its last checkpoint: they are
    dropped, as what they tell is computed again.
    """

    def __init__(self, folder: Path, slots: int, *, tensorboard: bool = True) -> None:
        path = folder / "curve.csv"
        lines = _kept(path, slots)
        fresh = path.with_suffix(".new")
        fresh.write_text("".join(lines), encoding="utf-8")
        fresh.replace(path)
        self._begun = bool(lines)
        self._closing = ExitStack()
        self._file = self._closing.enter_context(path.open("a", encoding="utf-8", buffering=1))
        self._writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=slots + 1)
            self._closing.callback(self._writer.close)
        self.close = self._closing.close

    def add(self, row: Mapping[str, float]) -> None:
        """Add a line; `slots` is one of its figures, and all lines have the same."""
        if not self._begun:
            self._file.write(",".join(row) + "\n")
            self._begun = True
        cells = (f"{one:.9g}" if isinstance(one, float) else str(one) for one in row.values())
        self._file.write(",".join(cells) + "\n")
        for name, value in row.items() if self._writer is not None else ():
            if name != "slots":
                self._writer.add_scalar(name, value, int(row["slots"]))


def _kept(path: Path, slots: int) -> list[str]:
    """The header and the lines up to `slots`, none of them cut short."""
    if not path.exists() or slots == 0:
        return []
    header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True) or [""]
    names = header.rstrip("\n").split(",")
    if "slots" not in names:
        return []
    place = names.index("slots")

    def kept(line: str) -> bool:
        cells = line.rstrip("\n").split(",")
        return line.endswith("\n") and len(cells) == len(names) and int(cells[place]) <= slots

    return [header, *filter(kept, lines)]


def train(
    control: Control,
    settings: Settings,
    out: Path,
    *,
    task: str = "",
    seed: int = 0,
    threads: int = 1,
    tensorboard: bool = True,
    command: str = "",
    start: Path | None = None,
    evaluation_slots: int = 200_000,
    evaluate_every: int = 0,
    checkpoint_every_s: float = _EVERY_S,
    progress: Callable[[TrainingProgress], None] | None = None,
) -> Trained:
    """Train, or go on with a training.

    The folder gets ``checkpoint.npz``, ``policy.npz``, ``curve.csv`` and ``tensorboard``. With a
    checkpoint of the same training in it, that is gone on with; only `Settings.slots` may have
    changed, and that only where nothing depends on it. Task and command are named in the policy's
    file; the seed is that of everything. The threads are PyTorch's: NumPy's matrix products take
    theirs from ``OMP_NUM_THREADS`` at its import. A policy to begin with, ``policy.npz`` of another
    training, takes the place of random weights.

    `evaluation_slots` are for the figures in the result and in the policy's file; in the learning
    curve, `evaluate_every` so many updates there is an evaluation without noise, and none with 0.
    At least so many seconds lie between two checkpoints; the last update always has one. Progress
    is told after each update.

    ValueError where the folder holds another training. RuntimeError where another process trains in
    it; a `inferway.learning.ppo.DivergenceError` where a number of the training is none any more:
    the last checkpoint, from before, is kept.
    """
    import torch

    from inferway.learning.ppo import DivergenceError, Learner

    torch.set_num_threads(threads)
    with alone(out):
        identity = identity_of(control, settings, task, seed, start)
        checkpoint = Checkpoint(out)
        saved = checkpoint.read()
        learner = Learner(control, settings, seed)
        cpu_before = 0.0
        if saved is not None:
            check_same(saved[0], identity, checkpoint.path)
            learner.restore(saved[1])
            cpu_before = float(saved[0].get("cpu_s", 0.0))
        elif start is not None:
            _begin_with(learner, start)
        curve = LearningCurve(out, learner.slots, tensorboard=tensorboard)
        clock = _Clock(learner.slots, settings.slots)
        kept_s, kept_slots = time.monotonic(), learner.slots if saved else -1

        def keep() -> None:
            nonlocal kept_s, kept_slots
            if kept_slots != learner.slots:
                cpu_s = cpu_before + clock.cpu_s
                checkpoint.write({"identity": identity, "cpu_s": cpu_s}, learner.state())
            kept_s, kept_slots = time.monotonic(), learner.slots

        def evaluated() -> PhaseTally:
            # Not the seed that the training's own sites have.
            other = int(np.random.SeedSequence([seed, 5]).generate_state(1)[0])
            return evaluate(learner.actor.deployed, control, slots=evaluation_slots, seed=other)

        with closing(curve), _stoppable() as stopped:
            while learner.slots < settings.slots and not stopped.is_set():
                try:
                    update = learner.update()
                except DivergenceError as error:
                    left = "there was no checkpoint yet"
                    if kept_slots >= 0:
                        left = f"{checkpoint.path} is kept, of {kept_slots:,} slots"
                    raise DivergenceError(
                        f"training failed: {error}; {left}. A lower learning rate, or rewards "
                        "that are scaled, may help."
                    ) from None
                row = _row(update)
                if evaluate_every:
                    number = learner.slots // settings.slots_per_update
                    due = number % evaluate_every == 0 or learner.slots >= settings.slots
                    tally = evaluated() if due else None
                    row["evaluated_goodput"] = tally.overall_goodput if tally else math.nan
                    row["evaluated_violations"] = tally.overall_violations if tally else math.nan
                curve.add(row | {"cpu_s": cpu_before + clock.cpu_s})
                if progress is not None:
                    progress(clock.progress(update))
                if time.monotonic() - kept_s >= checkpoint_every_s:
                    keep()
            keep()
        trained = Trained(
            policy=out / POLICY,
            slots=learner.slots,
            finished=learner.slots >= settings.slots,
            tally=evaluated(),
            evaluated=evaluation_slots,
            cpu_s=clock.cpu_s,
            slots_per_cpu_s=clock.slots_per_cpu_s(learner.slots),
        )
        figures = trained.to_json()
        result = {name: figures[name] for name in ("evaluated_slots", "goodput", "violation_ratio")}
        described = about(
            control, task, slots=learner.slots, seed=seed, command=command, result=result
        )
        save(trained.policy, learner.actor.network.arrays(), described)
        return trained


def _row(update: Update) -> dict[str, float]:
    figures = {field.name: getattr(update, field.name) for field in dataclasses.fields(update)}
    slots, tally = figures.pop("slots"), figures.pop("tally")
    overall = {"goodput": tally.overall_goodput, "violations": tally.overall_violations}
    phases = {
        f"{name}_{phase}": value
        for name in ("goodput", "violations", "heavy")
        for phase, value in enumerate(getattr(tally, name).tolist())
    }
    row = {"slots": slots} | overall | phases
    return row | {name: float(value) for name, value in figures.items()}


def _begin_with(learner: Learner, start: Path) -> None:
    """Take over the weights of a trained policy."""
    from inferway.scheduling.neural_policy import read

    network = read(start)
    layers = learner.actor.network.arrays()
    if [weight.shape for weight in network.weights] != [weight.shape for weight, _ in layers]:
        raise ValueError(f"{start} has layers of other sizes than what is to be trained")
    trained = zip(network.weights, network.biases, strict=True)
    for (weight, bias), (new_weight, new_bias) in zip(layers, trained, strict=True):
        weight[:], bias[:] = new_weight, new_bias


@contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """Let the first Ctrl-C end the training after the present update, and the second at once."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def stop(_number: int, _frame: Any) -> None:
        stopped.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


class _Clock:
    """Speed and time left of this process's part."""

    def __init__(self, slots: int, total: int) -> None:
        self.total, self.start_cpu_s = total, time.process_time()
        self.marks = [(slots, time.monotonic(), self.start_cpu_s)]
        """Slots, time and CPU time at the start and after the first update, which compiles."""

    @property
    def cpu_s(self) -> float:
        return time.process_time() - self.start_cpu_s

    def slots_per_cpu_s(self, slots: int) -> float:
        """Without the first update, where there are others."""
        for before, _, cpu_s in reversed(self.marks):
            if slots != before:
                return (slots - before) / (time.process_time() - cpu_s)
        return float("nan")

    def progress(self, update: Update) -> TrainingProgress:
        now_s = time.monotonic()
        before, before_s, _ = self.marks[-1]
        pace = (update.slots - before) / max(now_s - before_s, 1e-9)
        if len(self.marks) == 1:
            self.marks.append((update.slots, now_s, time.process_time()))
        return TrainingProgress(
            slots=update.slots,
            total=self.total,
            slots_per_s=pace,
            goodput=update.tally.overall_goodput,
            violations=update.tally.overall_violations,
            seconds_left=max(self.total - update.slots, 0) / pace,
        )
