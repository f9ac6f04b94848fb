"""Training a scheduler: a run that can be interrupted anywhere and goes on to the last digit.

Its files, the checkpoint and the trained policy that schedulers read without PyTorch
(`inferway.scheduling.neural_policy`), are plain arrays and a text about them, replaced whole.
"""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inferway.files import alone, replacing, write_whole
from inferway.learning.control import Control
from inferway.learning.settings import Settings
from inferway.learning.site import PhaseTally, evaluate
from inferway.scheduling.neural_policy import About, NeuralPolicy, read
from inferway.unreadable import fault

if TYPE_CHECKING:
    from inferway.learning.ppo import Learner, Update

Arrays = Mapping[str, NDArray[Any]]

# Below the folder of a training: the trained policy, and where it stands.
POLICY, CHECKPOINT = "policy.npz", "checkpoint.npz"
SCHEMA = 2
_EVERY_S = 30.0


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a training."""

    slots: int
    total: int
    slots_per_s: float  # Since this process began, by the clock on the wall
    goodput: float  # Of the last update's trajectories, with noise; mean of the phases
    violations: float
    seconds_left: float
    evaluating: bool = False  # Training is over; what follows are the figures of its policy

    @property
    def share(self) -> float:
        """Of the training, 0..1."""
        return self.slots / self.total


@dataclass(frozen=True)
class Trained:
    """Outcome of a training."""

    policy: Path
    slots: int
    finished: bool  # False after Ctrl-C; the same call goes on
    # Of the policy as deployed, without noise, over `evaluated` slots; None where Ctrl-C ended its
    # evaluation
    tally: PhaseTally | None
    evaluated: int
    cpu_s: float  # CPU time of this process's part
    slots_per_cpu_s: float  # NaN where there was nothing left to do

    def whole(self) -> Trained:
        """Itself; KeyboardInterrupt where Ctrl-C has cut it short, for callers that need it all."""
        if self.tally is None or not self.finished:
            raise KeyboardInterrupt
        return self

    def about(self, control: Control, task: str, seed: int, command: str) -> About:
        """Say in the policy's file what was trained, how, and what came of it."""
        names = ("evaluated_slots", "goodput", "violation_ratio")
        known = self.to_json() if self.tally is not None else {}
        result = {name: known[name] for name in names if known}
        return control.about(task, slots=self.slots, seed=seed, command=command, result=result)

    def to_json(self) -> dict[str, Any]:
        """As ``inferway train --json`` has it."""
        tally, phases = self.tally, []
        names = ("goodput", "violation_ratio", "heavy_share")
        if tally is not None:
            phases = np.stack([tally.goodput, tally.violations, tally.heavy], axis=1).tolist()
        return {
            "policy": str(self.policy),
            "slots": self.slots,
            "finished": self.finished,
            "evaluated_slots": self.evaluated,
            "goodput": None if tally is None else tally.overall_goodput,
            "violation_ratio": None if tally is None else tally.overall_violations,
            "phases": [dict(zip(names, phase, strict=True)) for phase in phases],
            "cpu_s": self.cpu_s,
            "slots_per_cpu_s": self.slots_per_cpu_s,
        }


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
    is told after each update, and where the evaluation begins. The policy is written before that:
    Ctrl-C in it leaves a policy without figures, as `Trained.tally` says.

    ValueError where the folder holds another training, or those of several seeds. RuntimeError
    where another process trains in it, and where the evaluation fails; a
    `inferway.learning.ppo.DivergenceError` where a number of the training is none any more: the
    last checkpoint, from before, is kept.
    """
    import torch

    from inferway.learning.ppo import DivergenceError, Learner

    torch.set_num_threads(threads)
    if any(out.glob(f"seed-*/{CHECKPOINT}")):  # whose best policy this one would overwrite
        raise ValueError(f"{out} has trainings of several seeds: name another --out, or remove it")
    with alone(out, "training"):
        identity = identity_of(control, settings, task, seed, start)
        saved = read_checkpoint(out)
        learner = Learner(control, settings, seed)
        cpu_before_s = 0.0
        if saved is not None:
            check_same(saved[0], identity, out / CHECKPOINT)
            learner.restore(saved[1])
            cpu_before_s = float(saved[0].get("cpu_s", 0.0))
        elif start is not None:
            _begin_with(learner, read(start))
        curve = LearningCurve(out, learner.slots, tensorboard=tensorboard)
        kept_s, kept_slots = time.monotonic(), learner.slots if saved else -1
        start_cpu_s = time.process_time()
        # Slots, time and CPU time at the start and after the first update, which compiles.
        marks = [(learner.slots, kept_s, start_cpu_s)]

        def cpu_s() -> float:
            return time.process_time() - start_cpu_s

        def keep() -> None:
            nonlocal kept_s, kept_slots
            if kept_slots != learner.slots:
                made = {"identity": identity, "cpu_s": cpu_before_s + cpu_s()}
                write_checkpoint(out, made, learner.state())
            kept_s, kept_slots = time.monotonic(), learner.slots

        def evaluated() -> PhaseTally:
            return _evaluated(learner, seed, evaluation_slots)

        with closing(curve), _stoppable() as stopped:
            while learner.slots < settings.slots and not stopped.is_set():
                try:
                    update = learner.update()
                except DivergenceError as error:
                    left = "there was no checkpoint yet"
                    if kept_slots >= 0:
                        left = f"{out / CHECKPOINT} is kept, of {kept_slots:,} slots"
                    raise DivergenceError(
                        f"training failed: {error}; {left}. A lower learning rate, or rewards "
                        "that are scaled, may help."
                    ) from None
                row = _row(update)
                if evaluate_every:
                    number = learner.slots // settings.slots_per_update
                    due = number % evaluate_every == 0 or learner.slots >= settings.slots
                    known, overall = evaluated().figures() if due else {}, ("goodput", "violations")
                    row |= {f"evaluated_{name}": known.get(name, math.nan) for name in overall}
                curve.add(row | {"cpu_s": cpu_before_s + cpu_s()})
                now_s, (before, before_s, _) = time.monotonic(), marks[-1]
                pace = (update.slots - before) / max(now_s - before_s, 1e-9)
                if len(marks) == 1:
                    marks.append((update.slots, now_s, time.process_time()))
                if progress is not None:
                    left_s = max(settings.slots - update.slots, 0) / pace
                    shares = update.tally.overall_goodput, update.tally.overall_violations
                    progress(TrainingProgress(update.slots, settings.slots, pace, *shares, left_s))
                if time.monotonic() - kept_s >= checkpoint_every_s:
                    keep()
            keep()
            # Without the first update, where there are others.
            since = (mark for mark in reversed(marks) if mark[0] != learner.slots)
            paces = ((learner.slots - one) / (time.process_time() - at) for one, _, at in since)
            trained = Trained(
                policy=out / POLICY,
                slots=learner.slots,
                finished=learner.slots >= settings.slots,
                tally=None,
                evaluated=0,
                cpu_s=cpu_s(),
                slots_per_cpu_s=next(paces, math.nan),
            )
            layers = learner.actor.network.arrays()
            if not _kept(trained.policy, layers):
                save(trained.policy, layers, trained.about(control, task, seed, command))
        try:
            if progress is not None:
                now = TrainingProgress(
                    *(trained.slots, settings.slots, math.nan, math.nan, math.nan, 0.0),
                    evaluating=True,
                )
                progress(now)
            with_figures = dataclasses.replace(
                trained, tally=evaluated(), evaluated=evaluation_slots, cpu_s=cpu_s()
            )
            save(trained.policy, layers, with_figures.about(control, task, seed, command))
        except KeyboardInterrupt:  # after training, the first one ends the evaluation
            return trained
        except Exception as error:
            raise RuntimeError(
                f"the policy is {trained.policy}, but evaluating it failed: {error}"
            ) from error
        return with_figures


def _kept(path: Path, layers: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]]) -> bool:
    """Tell whether this very policy is there already, with its figures."""
    try:
        there = read(path)
    except ValueError:
        return False
    own = (*(weight for weight, _ in layers), *(bias for _, bias in layers))
    same = map(np.array_equal, own, (*there.weights, *there.biases))
    return bool(there.about.result) and all(same)


def stretch(
    *,
    control: Control,
    settings: Settings,
    seed: int,
    state: Arrays | None,
    start: NeuralPolicy | None,
    threads: int,
    lasting_s: float,
    evaluation_slots: int,
) -> dict[str, Any]:
    """Train for some seconds from a state, for a worker that reads and writes no files.

    Where stretches of one training begin and end does not change its numbers.

    Parameters
    ----------
    control, settings, seed, threads, evaluation_slots
        As of `train`.
    state
        From which it goes on; None at the beginning.
    start
        A policy to begin with in place of random weights.
    lasting_s
        After so many seconds the present update is the last of this stretch.

    Returns
    -------
    dict
        ``state`` at the end; ``rows`` of the learning curve, a mapping for each update; ``cpu_s``
        that all took; ``diverged``, the sentence on a number that is none any more, else empty.
        Where the training is over, ``layers`` has the network's, and ``tallies`` two evaluations
        over other requests each: one to choose by among seeds, one for what was chosen.
    """
    import torch

    from inferway.learning.ppo import DivergenceError, Learner

    start_s, start_cpu_s = time.monotonic(), time.process_time()
    torch.set_num_threads(threads)
    learner = Learner(control, settings, seed)
    if state is not None:
        learner.restore(dict(state))
    elif start is not None:
        _begin_with(learner, start)
    rows: list[dict[str, float]] = []
    made: dict[str, Any] = {"rows": rows, "diverged": "", "layers": None, "tallies": None}
    try:
        while learner.slots < settings.slots:
            row = _row(learner.update())
            rows.append(row | {"cpu_s": time.process_time() - start_cpu_s})
            if time.monotonic() - start_s >= lasting_s:
                break
    except DivergenceError as error:
        return made | {"diverged": str(error), "state": state, "cpu_s": 0.0, "rows": []}
    made |= {"state": learner.state(), "cpu_s": time.process_time() - start_cpu_s}
    if learner.slots >= settings.slots:
        made["layers"] = learner.actor.network.arrays()
        made["tallies"] = [_evaluated(learner, seed, evaluation_slots, i) for i in range(2)]
    return made


def _evaluated(learner: Learner, seed: int, slots: int, again: int = 0) -> PhaseTally:
    # Not the seed that the training's own sites have.
    other = int(np.random.SeedSequence([seed, 5 + again]).generate_state(1)[0])
    return evaluate(learner.actor.deployed, learner.control, slots=slots, seed=other)


def _row(update: Update) -> dict[str, float]:
    learned = {
        name: float(value) for name, value in vars(update).items() if name not in ("slots", "tally")
    }
    return {"slots": update.slots, **update.tally.figures(), **learned}


def _begin_with(learner: Learner, start: NeuralPolicy) -> None:
    layers = learner.actor.network.arrays()
    if [weight.shape for weight in start.weights] != [weight.shape for weight, _ in layers]:
        raise ValueError(f"{start.path} has layers of other sizes than what is to be trained")
    trained = zip(start.weights, start.biases, strict=True)
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


class LearningCurve:
    """``curve.csv`` in a folder that exists, and ``tensorboard`` beside it.

    Lines after so many slots are of a run that was cut off after its last checkpoint: they are
    dropped, as what they tell is computed again.
    """

    def __init__(self, folder: Path, slots: int, *, tensorboard: bool = True) -> None:
        path = folder / "curve.csv"
        write_whole(path, "".join(_lines_up_to(path, slots)))
        self._closing = ExitStack()
        self.close = self._closing.close
        self._file = self._closing.enter_context(path.open("a", encoding="utf-8", buffering=1))
        self._writer: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=slots + 1)
            self._closing.callback(self._writer.close)

    def add(self, row: Mapping[str, float]) -> None:
        """Add a line; `slots` is one of its figures, and all lines have the same."""
        if not self._file.tell():
            self._file.write(",".join(row) + "\n")
        cells = (f"{one:.9g}" if isinstance(one, float) else str(one) for one in row.values())
        self._file.write(",".join(cells) + "\n")
        for name, value in row.items() if self._writer is not None else ():
            if name != "slots":
                self._writer.add_scalar(name, value, int(row["slots"]))


def _lines_up_to(path: Path, slots: int) -> list[str]:
    """The header and the lines up to `slots`, none of them cut short."""
    text = path.read_text(encoding="utf-8") if slots and path.exists() else ""
    header, *lines = text.splitlines(keepends=True) or [""]
    names = header.rstrip("\n").split(",")
    if "slots" not in names:
        return []

    def whole(line: str) -> bool:
        cells = dict(zip(names, line.rstrip("\n").split(","), strict=False))
        return line.endswith("\n") and len(cells) == len(names) and int(cells["slots"]) <= slots

    return [header, *filter(whole, lines)]


def save(
    path: Path, layers: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]]], about: About
) -> None:
    """Write a policy: ``weight_i``, ``bias_i`` by layer, and ``about``."""
    arrays: dict[str, NDArray[Any]] = {"about": np.array(about.to_json())}
    for place, (weight, bias) in enumerate(layers):
        arrays |= {f"weight_{place}": np.ascontiguousarray(weight), f"bias_{place}": bias}
    _write(path, arrays, np.savez_compressed)


def _write(path: Path, arrays: Arrays, form: Callable[..., None] = np.savez) -> None:
    """Write arrays to a file that is either as it was before or whole, whatever happens."""
    with replacing(path, lasting=True) as file:
        form(file, allow_pickle=False, **arrays)


def write_checkpoint(folder: Path, about: Mapping[str, Any], state: Arrays) -> None:
    """Keep a state and what it is one of; on the disk when this returns."""
    text = json.dumps({"schema": SCHEMA, **about}, allow_nan=False)
    _write(folder / CHECKPOINT, {"about": np.array(text), **state})


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """Read what was written last; None where nothing was.

    ValueError where the file is none of ours, or of another version.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        # NumPy leaves a file that is no archive open.
        with path.open("rb") as bytes_, np.load(bytes_, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(str(arrays.pop("about")[()]))
        schema = about["schema"]
    except Exception as error:  # whatever the parts of NumPy's reader raise
        raise ValueError(f"{path} is not a checkpoint: {fault(error)}") from None
    if schema != SCHEMA:
        raise ValueError(
            f"{path} is of another version of inferway and cannot be gone on with: it has "
            f"schema {schema}, and {SCHEMA} is what is read. Name another --out, or remove it."
        )
    return about, arrays


def identity_of(
    control: Control, settings: Settings, task: str, seed: int, start: Path | None
) -> dict[str, Any]:
    """Describe what makes a training this one and none other; infinities by name."""
    chosen = dataclasses.asdict(settings)
    if not settings.scheduled:
        del chosen["slots"]
    if not settings.apart:  # as it was before there was such a setting
        del chosen["apart"]
    sites, *others = map(_described, control.parts)
    identity = {
        "task": task,
        "seed": seed,
        "start": start,
        "settings": chosen,
        "sites": sites | ({"others": others} if others else {}),
    }
    text = json.dumps(identity, default=_plain)
    return dict(json.loads(text, parse_constant=lambda name: str(float(name))))


def _described(control: Control) -> dict[str, Any]:
    controlled = ("slot_s", "sees_phase", "batches", "rejected_weight", "accuracy_weight")
    described = ("fleet", "service", "arrivals", "deadline_s", "late", "walk", "batches")
    return {
        **{name: getattr(control, name) for name in controlled},
        "gains": control.reward_gains,
        **{name: getattr(control.scenario, name) for name in described},
        **({"outages": control.outages} if control.changing else {}),
    }


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else str(value)


def check_same(saved: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    """Raise ValueError, with what differs, unless a checkpoint is of the training wanted."""
    before, now = (
        # What is in a part stands in its place.
        {
            name: one
            for part, value in identity.items()
            for name, one in (value if isinstance(value, dict) else {part: value}).items()
        }
        for identity in (saved.get("identity", {}), wanted)
    )
    differ = [
        f"{name} ({_short(before.get(name))} there, {_short(now.get(name))} now)"
        for name in now | before
        if before.get(name) != now.get(name)
    ]
    if differ:
        raise ValueError(
            f"{path} is of another training: {'; '.join(differ)}. Name another --out, or remove it."
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
