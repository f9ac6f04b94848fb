"""Trainings of one scheduler from several seeds, by workers, of which the best is kept.

Each training goes on in stretches of some seconds, each from the state that the one before ended
with, and each on one worker: its rollouts are fastest where the learner is. This process alone
writes: the same files for each seed that one training has, so that a worker that dies costs a
stretch, and whoever ends this process loses no more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.text import Text

from inferway.experiments.runner import Point
from inferway.experiments.text import Drawing, Frame, Shown, frame
from inferway.experiments.trained import lines
from inferway.experiments.workers import Workers, by_workers
from inferway.files import alone
from inferway.learning.control import Control
from inferway.learning.settings import Settings
from inferway.learning.site import PhaseTally
from inferway.learning.training import (
    CHECKPOINT,
    POLICY,
    LearningCurve,
    Trained,
    TrainingProgress,
    check_same,
    identity_of,
    read_checkpoint,
    save,
    stretch,
    write_checkpoint,
)
from inferway.scheduling.neural_policy import NeuralPolicy, read

FIRST_S: Final = 5.0  # the first stretch of each seed: so soon it is seen how fast they are
STRETCH_S: Final = 30.0  # the others: as long as one training lets pass between checkpoints
_FIGURES: Final = ("goodput", "violation_ratio")


@dataclass(frozen=True)
class SeedOutcome:
    """How far one seed's training has come; `tally` is what it was compared by, once it is over."""

    seed: int
    policy: Path
    slots: int
    finished: bool
    tally: PhaseTally | None
    cpu_s: float
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """As ``inferway train --seeds --json`` has it under ``seeds``."""
        goodput, violations = _figures(self.tally)
        return {
            "seed": self.seed,
            "policy": str(self.policy) if self.finished else None,
            "slots": self.slots,
            "finished": self.finished,
            "goodput": goodput,
            "violation_ratio": violations,
            "cpu_s": self.cpu_s,
            "error": self.error or None,
        }


@dataclass(frozen=True)
class TrainedSeeds(Shown):
    """Trainings from several seeds.

    Attributes
    ----------
    policy
        Its name, such as ``rl-po``.
    seeds
        In order.
    best
        The one with the greatest goodput, exported: its figures are of other requests than those
        it was chosen by, which it would look too good on. None where some are not over.
    best_seed
        Its seed.
    """

    policy: str
    seeds: tuple[SeedOutcome, ...]
    best: Trained | None = None
    best_seed: int | None = None

    @property
    def finished(self) -> bool:
        """True where none is left to be gone on with."""
        return self.best is not None

    def spread(self) -> dict[str, dict[str, float]]:
        """Least, mean and greatest of the seeds' figures, and their standard deviation."""
        found = [_figures(one.tally) for one in self.seeds if one.tally is not None]
        spreads = {}
        for place, name in enumerate(_FIGURES if found else ()):
            values = np.array([each[place] for each in found])
            spreads[name] = {
                "least": float(values.min()),
                "mean": float(values.mean()),
                "greatest": float(values.max()),
                "deviation": float(values.std(ddof=1)) if len(values) > 1 else math.nan,
            }
        return spreads

    def to_json(self) -> dict[str, Any]:
        """As ``inferway train --seeds --json`` has it."""
        told = dict.fromkeys(("policy", "evaluated_slots", *_FIGURES, "phases"))
        return {
            **(told if self.best is None else self.best.to_json()),
            "slots": sum(one.slots for one in self.seeds),
            "finished": self.finished,
            "cpu_s": sum(one.cpu_s for one in self.seeds),
            "slots_per_cpu_s": None if self.best is None else self.best.slots_per_cpu_s,
            "seed": self.best_seed,
            "spread": self.spread(),
            "seeds": [one.to_json() for one in self.seeds],
        }

    def to_frame(self) -> Frame:
        """One row per seed."""
        return frame(one.to_json() for one in self.seeds)

    def plot(self) -> Drawing:
        """Draw what came of each seed's requests."""
        from inferway.experiments.figure import Bars, bars

        rows = self.to_frame()
        names = [f"seed {seed}" for seed in rows["seed"]]
        parts = {"goodput": "goodput", "violation_ratio": "violations"}
        heights = {label: rows[key].astype(float).tolist() for key, label in parts.items()}
        return bars([Bars("without noise", "share of requests", names, heights)])

    def tables(self) -> list[Text]:
        """The best in words, and what the seeds differ by."""
        said = []
        if self.best is not None:
            said += lines(f"{self.policy} of seed {self.best_seed}", self.best)
        told = sum(one.tally is not None for one in self.seeds)
        for name, of in self.spread().items() if told > 1 else ():
            words = f"  {name.replace('_ratio', 's')} of {told} seeds: "
            words += f"{of['least']:.2%} to {of['greatest']:.2%}, mean {of['mean']:.2%}, "
            words += f"deviation {1e2 * of['deviation']:.2g} points"
            said.append(Text(words))
        for one in self.seeds:
            goodput, violations = _figures(one.tally)
            figures = f"{one.slots:,} slots"
            if one.tally is not None:
                figures = f"goodput {goodput:.2%}, violations {violations:.2%}"
            said.append(Text(f"  seed {one.seed}: {one.error or figures}", style="dim"))
        return said


def _figures(tally: PhaseTally | None) -> tuple[float | None, float | None]:
    return (None, None) if tally is None else (tally.overall_goodput, tally.overall_violations)


class _Training:
    """One seed's training: its files, which this process writes, and its next stretch."""

    def __init__(self, control: Control, settings: Settings, seed: int, folder: Path) -> None:
        self.control, self.settings, self.seed, self.folder = control, settings, seed, folder
        self.state: Any = None
        self.slots = self.slots_before = 0
        self.cpu_s = self.cpu_before_s = 0.0
        self.tallies: list[PhaseTally] = []
        self.layers: Any = None
        self.error = ""
        self._stretches = 0

    def open(self, task: str, start: Path | None, held: ExitStack) -> None:
        """Take the folder, and what is in it of this training."""
        held.enter_context(alone(self.folder, "training"))
        self._identity = identity_of(self.control, self.settings, task, self.seed, start)
        if (saved := read_checkpoint(self.folder)) is not None:
            check_same(saved[0], self._identity, self.folder / CHECKPOINT)
            self.state = saved[1]
            self.slots = self.slots_before = int(self.state["slots"])
            self.cpu_s = self.cpu_before_s = float(saved[0].get("cpu_s", 0.0))
        self._curve = held.enter_context(closing(LearningCurve(self.folder, self.slots)))

    @property
    def over(self) -> bool:
        """True where there is nothing left to do."""
        return bool(self.tallies or self.error)

    def next(self, start: NeuralPolicy | None, threads: int, evaluation_slots: int) -> Point:
        """Make a point of the next stretch."""
        lasting_s = STRETCH_S if self._stretches else FIRST_S
        self._stretches += 1
        arguments = {
            **{"control": self.control, "settings": self.settings, "seed": self.seed},
            **{"state": self.state, "start": start if self.state is None else None},
            **{"threads": threads, "lasting_s": lasting_s, "evaluation_slots": evaluation_slots},
        }
        return Point({"seed": self.seed, "slots": self.slots}, stretch, arguments, lasting_s)

    def ended(self, made: dict[str, Any]) -> dict[str, float] | None:
        """Keep what a stretch has come to; return the last line of the learning curve."""
        if made["diverged"]:
            self.error = f"training failed: {made['diverged']}"
            return None
        for row in made["rows"]:
            self._curve.add(row | {"cpu_s": self.cpu_s + row["cpu_s"]})
        self.state, self.slots = made["state"], int(made["state"]["slots"])
        self.cpu_s += made["cpu_s"]
        if made["rows"]:
            about = {"identity": self._identity, "cpu_s": self.cpu_s}
            write_checkpoint(self.folder, about, self.state)
        if made["tallies"] is not None:
            self.tallies, self.layers = made["tallies"], made["layers"]
        return made["rows"][-1] if made["rows"] else None

    def trained(self, policy: Path, evaluated: int, tally: PhaseTally) -> Trained:
        """Say what came of it, as of one training."""
        slots, cpu_s = self.slots - self.slots_before, self.cpu_s - self.cpu_before_s
        pace = slots / cpu_s if slots else math.nan
        return Trained(policy, self.slots, True, tally, evaluated, cpu_s, pace)

    def outcome(self) -> SeedOutcome:
        """Say how far it has come."""
        return SeedOutcome(
            seed=self.seed,
            policy=self.folder / POLICY,
            slots=self.slots,
            finished=bool(self.tallies),
            tally=self.tallies[0] if self.tallies else None,
            cpu_s=self.cpu_s - self.cpu_before_s,
            error=self.error,
        )


def train_seeds(
    control: Control,
    settings: Settings,
    out: Path,
    *,
    seeds: Sequence[int],
    who: Workers,
    task: str = "",
    threads: int = 1,
    command: Callable[[int], str] = "{}".format,
    start: Path | None = None,
    evaluation_slots: int = 200_000,
    progress: Callable[[TrainingProgress], None] | None = None,
) -> TrainedSeeds:
    """Train from several seeds, or go on with that, and export the best.

    Each seed has a folder ``seed-SEED`` below `out` with what `inferway.learning.training.train`
    leaves there, and the same numbers; the best one's policy is ``policy.npz`` in `out`. After
    Ctrl-C, what workers do is ended, and the same call goes on from the stretches that had ended.

    Parameters
    ----------
    control, settings, task, threads, start, evaluation_slots
        As of `inferway.learning.training.train`.
    out
        Folder for all.
    seeds
        Each of them once.
    who
        Who trains: processes, or a cluster. Threads would take turns with each other.
    command
        Makes, for a seed, the text by which its policy's file says how it was made.
    progress
        Told of all seeds together, after each stretch.

    Raises
    ------
    ValueError
        Where `out` has one training of its own, a folder has another training, there are no such
        workers, or they are threads.
    RuntimeError
        Where a worker cannot train, or no training has come to its end.
    """
    if who.engine == "threads":
        raise ValueError(
            "trainings in threads of one process take turns: --workers processes:N, ray or dask://"
        )
    if (out / CHECKPOINT).exists():
        raise ValueError(f"{out} has a training of one seed: name another --out, or remove it")
    begun = None if start is None else read(start)
    with ExitStack() as held:
        held.enter_context(alone(out, "training"))
        every = [_Training(control, settings, seed, out / f"seed-{seed}") for seed in seeds]
        for one in every:
            one.open(task, start, held)
        _run(every, who, begun, threads, evaluation_slots, progress)
        for one in every:
            if one.tallies:
                kept = one.trained(one.folder / POLICY, evaluation_slots, one.tallies[0])
                about = kept.about(control, task, one.seed, command(one.seed))
                save(kept.policy, one.layers, about)
        outcomes, policy = tuple(one.outcome() for one in every), control.about(task).policy
        if all(one.error for one in every):
            raise RuntimeError(f"no seed could be trained; {every[0].seed}: {every[0].error}")
        if not all(one.over for one in every):
            return TrainedSeeds(policy, outcomes)
        best = max((one for one in every if one.tallies), key=_goodput)
        trained = best.trained(out / POLICY, evaluation_slots, best.tallies[1])
        about = trained.about(control, task, best.seed, command(best.seed))
        save(trained.policy, best.layers, about)
        return TrainedSeeds(policy, outcomes, trained, best.seed)


def _goodput(one: _Training) -> float:
    goodput = one.tallies[0].overall_goodput
    return goodput if math.isfinite(goodput) else -math.inf


def _run(
    every: Sequence[_Training],
    who: Workers,
    begun: NeuralPolicy | None,
    threads: int,
    evaluation_slots: int,
    progress: Callable[[TrainingProgress], None] | None,
) -> None:
    """Have stretches run until all is over, or Ctrl-C comes."""
    began_s, before = time.monotonic(), sum(one.slots for one in every)
    total = sum(one.settings.slots for one in every)
    doing = list(every)
    points = [one.next(begun, threads, evaluation_slots) for one in every]
    with suppress(KeyboardInterrupt), closing(by_workers(points, who)) as ended:
        for computed in ended:
            one = doing[computed.place]
            if computed.result is None:
                raise RuntimeError(
                    f"seed {one.seed} could not be trained: "
                    f"{computed.error.strip().splitlines()[-1]}"
                )
            last = one.ended(computed.result)
            points[computed.place] = replace(points[computed.place], arguments={})  # as it is large
            if not one.over:
                doing.append(one)
                points.append(one.next(begun, threads, evaluation_slots))
            if progress is not None and last is not None:
                slots = sum(each.slots for each in every)
                pace = (slots - before) / max(time.monotonic() - began_s, 1e-9)
                left_s = max(total - slots, 0) / pace
                figures = last["goodput"], last["violations"]
                progress(TrainingProgress(slots, total, pace, *figures, left_s))
