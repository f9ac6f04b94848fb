"""The trained policies that the studies evaluate, what each was trained for, and their training.

They lie in ``policies`` beside this file, `NAME.npz.xz` with its learning curve `NAME.csv` where
its training began anew, or in the folder that the environment variable INFERWAY_POLICIES names,
where a plain `NAME.npz` will do as well.

`python -m inferway.studies.scheduling.train NAME` trains them. Each has a folder of its own below
``--out`` and can be stopped and gone on with, as `inferway train` can. When it is through, its
policy and its learning curve, averaged over stretches of the training, lie where they belong.
``--ship FOLDER`` takes those of a training by `inferway train` instead.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from inferway.learning.control import Control
from inferway.learning.settings import TUNED, Settings
from inferway.learning.training import TrainingProgress, train
from inferway.scheduling.neural_policy import NeuralPolicy, packed, read
from inferway.studies.scheduling.burst import DEADLINE_S, TASK, control

SEEDS = ("rl-po", "rl-po-seed-1", "rl-po-seed-2")  # three trainings of the same policy
# Columns of a shipped curve; phase 0 is the bursty one.
KEPT = (
    *("slots", "goodput", "violations", "goodput_0", "goodput_1", "violations_0", "violations_1"),
    *("heavy_0", "heavy_1"),
)
LINES = 100

_PACKED = ".npz.xz"

_NAME = re.compile(
    r"(?P<paper>paper-)?(?P<periodic>periodic-)?(?:deadline-(?P<deadline>\d+)ms-)?"
    r"(?P<policy>rl-(?:po|fo)(?:-b)?)(?:-seed-(?P<seed>\d+))?"
)


@dataclass(frozen=True)
class Shipped:
    """Meaning of a name."""

    name: str
    policy: str  # ``rl-po``, ``rl-fo``, ``rl-po-b`` or ``rl-fo-b``
    workload: str
    deadline_s: float
    seed: int
    paper: bool  # trained with the paper's own settings and slots, none of ours

    @property
    def control(self) -> Control:
        """The sites that it is trained on."""
        return control(self.policy, self.workload, deadline_s=self.deadline_s)

    @property
    def start(self) -> str | None:
        """The policy that its training begins with: at other deadlines, that of 300 ms."""
        return self.policy if self.deadline_s != DEADLINE_S and not self.paper else None

    @property
    def file(self) -> Path:
        """Path where it lies, or would."""
        return _place(self.name)

    @property
    def command(self) -> str:
        """Command that makes it."""
        return f"python -m inferway.studies.scheduling.train {self.name}"


def shipped(name: str) -> Shipped:
    """Find what a name means, such as ``periodic-rl-po`` or ``deadline-150ms-rl-po``.

    ValueError for a name of another form.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f"no such policy as {name!r}: expected "
            "[paper-][periodic-][deadline-150ms-]rl-po[-b][-seed-1], or rl-fo"
        )
    return Shipped(
        name=name,
        policy=match["policy"],
        workload="periodic" if match["periodic"] else "map",
        deadline_s=int(match["deadline"] or 1000 * DEADLINE_S) / 1000,
        seed=int(match["seed"] or 0),
        paper=match["paper"] is not None,
    )


def at_deadline(policy: str, deadline_s: float) -> str:
    """The name of a policy for this deadline."""
    return policy if deadline_s == DEADLINE_S else f"deadline-{round(1000 * deadline_s)}ms-{policy}"


def folder() -> Path:
    """Folder of the policies."""
    return Path(os.environ.get("INFERWAY_POLICIES") or Path(__file__).parent / "policies")


def _place(name: str) -> Path:
    """Path of a policy as it is packed, or as `inferway train` writes it where only that lies."""
    packed_up, plain = (folder() / f"{name}{suffix}" for suffix in (_PACKED, ".npz"))
    return plain if plain.is_file() and not packed_up.is_file() else packed_up


def digest(name: str, suffix: str = "") -> str:
    """Version of a policy, or of its file with another suffix: empty where there is none."""
    file = folder() / f"{name}{suffix}" if suffix else _place(name)
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else ""


def network(name: str) -> NeuralPolicy:
    """Read a policy; ValueError where it is none or not there, with the command that makes it."""
    known = shipped(name)
    if not known.file.is_file():
        raise ValueError(f"there is no {known.file}: `{known.command}` trains it")
    return read(known.file)


def curve_of(name: str, command: str | None = None) -> dict[str, list[float]]:
    """Read a learning curve: columns by name; ValueError where it is not there.

    The command makes it, where it is none of a shipped policy.
    """
    file = folder() / f"{name}.csv"
    if not file.is_file():
        made_by = command or shipped(name).command
        raise ValueError(f"there is no learning curve {file}: `{made_by}` makes it")
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {key: [float(row[key]) for row in rows] for key in rows[0]}


def write_curve(file: Path, rows: Sequence[Mapping[str, str | float]]) -> None:
    """Write `KEPT` columns of a curve, averaged over stretches: `LINES` lines, four digits."""
    values = np.array([[float(row[name]) for name in KEPT] for row in rows])
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(KEPT)
        for block in np.array_split(values, min(LINES, len(values))):
            # A phase that nobody saw in an update says nothing.
            known = [column[~np.isnan(column)] for column in block.T[1:]]
            means = [float(one.mean()) if one.size else float("nan") for one in known]
            writer.writerow([int(block[-1, 0]), *(f"{mean:.4g}" for mean in means)])


def ship(training: Path, name: str) -> Path:
    """Keep the policy of a folder of `inferway train`; give its file.

    Its learning curve is kept, too, unless it began with another policy: no study draws that.
    ValueError where there is no policy, or it is of another kind.
    """
    wanted, policy = shipped(name), training / "policy.npz"
    about = read(policy).about
    if (about.policy, about.deadline_s) != (wanted.policy, wanted.deadline_s):
        raise ValueError(
            f"{policy} is of {about.policy} at {about.deadline_s:g} s; {name} is of "
            f"{wanted.policy} at {wanted.deadline_s:g} s"
        )
    file = folder() / f"{name}{_PACKED}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(packed(policy))
    if wanted.start is not None:
        return file
    with (training / "curve.csv").open(encoding="utf-8", newline="") as lines:
        write_curve(file.with_name(f"{name}.csv"), list(csv.DictReader(lines)))
    return file


def trained(name: str, slots: int | None, out: Path) -> Path:
    """Train a policy, or go on, and ship it.

    ValueError where the policy to begin with is not there, with the command that makes it.
    KeyboardInterrupt after Ctrl-C; what was trained is kept.
    """
    wanted = shipped(name)
    settings = Settings() if wanted.paper else TUNED
    settings = settings if slots is None else replace(settings, slots=slots)

    def tell(now: TrainingProgress) -> None:
        told = (
            f"goodput {now.goodput:.2%}, violations {now.violations:.2%}, "
            f"{now.seconds_left:.0f} s left"
        )
        print(
            f"\r{name}: {now.slots:,} of {now.total:,} slots, "
            f"{'evaluating' if now.evaluating else told:<50} ",
            end="",
            file=sys.stderr,
            flush=True,
        )

    found = train(
        wanted.control,
        settings,
        out / name,
        task=TASK,
        seed=wanted.seed,
        tensorboard=False,
        command=f"{wanted.command} --slots {settings.slots}",
        start=None if wanted.start is None else network(wanted.start).path,
        progress=tell,
    )
    print(file=sys.stderr)
    found.whole()
    return ship(out / name, name)


def main() -> None:
    """Train and ship."""
    parser = argparse.ArgumentParser(
        prog="python -m inferway.studies.scheduling.train",
        description="Train the policies that the studies evaluate: "
        "`python -m inferway.studies.scheduling.train NAME`.",
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="such as rl-po or periodic-rl-fo")
    parser.add_argument("--slots", type=float, help="to train for")
    parser.add_argument("--out", type=Path, default=Path("out/train"), help="folder for trainings")
    parser.add_argument("--ship", type=Path, metavar="FOLDER", help="a training that is finished")
    given = parser.parse_args()
    slots = None if given.slots is None else int(given.slots)
    try:
        for name in given.names:
            print(ship(given.ship, name) if given.ship else trained(name, slots, given.out))
    except ValueError as error:
        parser.exit(1, f"{error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "interrupted; the same command goes on\n")


def in_one_thread(program: Callable[[], None]) -> None:
    """Run a program that imports PyTorch later on: threads that wait actively take the cores."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    program()


if __name__ == "__main__":
    in_one_thread(main)
