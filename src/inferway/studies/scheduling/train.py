"""Train the policies that the studies evaluate: `python -m inferway.studies.scheduling.train NAME`.

Each has a folder of its own below ``--out`` and can be stopped and gone on with, as `inferway
train` can. When it is through, its policy and its learning curve, averaged over stretches of the
training, lie where `shipped` looks for them. ``--ship FOLDER`` takes those of a training by
`inferway train` instead.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from inferway.learning.settings import TUNED, Settings
from inferway.scheduling.neural_policy import read
from inferway.studies.scheduling.burst import TASK
from inferway.studies.scheduling.shipped import network, shipped

# Columns of a shipped curve; phase 0 is the bursty one.
KEPT = (
    *("slots", "goodput", "violations", "goodput_0", "goodput_1", "violations_0", "violations_1"),
    *("heavy_0", "heavy_1"),
)
LINES = 100


def ship(training: Path, name: str) -> Path:
    """Keep a training's policy and curve.

    Parameters
    ----------
    training
        A folder of `inferway train`.
    name
        As `shipped` has it.

    Returns
    -------
    Path
        The policy.

    Raises
    ------
    ValueError
        Where there is no policy, or it is of another kind.
    """
    wanted = shipped(name)
    policy = training / "policy.npz"
    about = read(policy).about
    if (about.policy, about.deadline_s) != (wanted.policy, wanted.deadline_s):
        raise ValueError(
            f"{policy} is of {about.policy} at {about.deadline_s:g} s; {name} is of "
            f"{wanted.policy} at {wanted.deadline_s:g} s"
        )
    wanted.file.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(policy, wanted.file)
    with (training / "curve.csv").open(encoding="utf-8", newline="") as lines:
        write_curve(wanted.file.with_suffix(".csv"), list(csv.DictReader(lines)))
    return wanted.file


def write_curve(file: Path, rows: Sequence[Mapping[str, str | float]]) -> None:
    """Write `KEPT` columns of a curve, averaged over stretches so that `LINES` lines are left."""
    values = np.array([[float(row[name]) for name in KEPT] for row in rows])
    blocks = np.array_split(values, min(LINES, len(values)))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(KEPT)
        for block in blocks:
            # A phase that nobody saw in an update says nothing.
            known = [column[~np.isnan(column)] for column in block.T[1:]]
            means = [float(one.mean()) if one.size else float("nan") for one in known]
            writer.writerow([int(block[-1, 0]), *(f"{mean:.6g}" for mean in means)])


def trained(name: str, slots: int | None, out: Path) -> Path:
    """Train a policy, or go on, and ship it.

    Raises
    ------
    ValueError
        Where the policy to begin with is not there, with the command that makes it.
    KeyboardInterrupt
        After Ctrl-C; what was trained is kept.
    """
    from inferway.learning.training import TrainingProgress, train

    wanted = shipped(name)
    settings = Settings() if wanted.paper else TUNED
    if slots is not None:
        settings = replace(settings, slots=slots)

    def tell(now: TrainingProgress) -> None:
        print(
            f"\r{name}: {now.slots:,} of {now.total:,} slots, goodput {now.goodput:.2%}, "
            f"violations {now.violations:.2%}, {now.seconds_left:.0f} s left ",
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
    if not found.finished:
        raise KeyboardInterrupt
    return ship(out / name, name)


def main() -> None:
    """Train and ship."""
    parser = argparse.ArgumentParser(
        prog="python -m inferway.studies.scheduling.train", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="such as rl-po or periodic-rl-fo")
    parser.add_argument("--slots", type=float, help="to train for")
    parser.add_argument("--out", type=Path, default=Path("out/train"), help="folder for trainings")
    parser.add_argument("--ship", type=Path, metavar="FOLDER", help="a training that is finished")
    arguments = parser.parse_args()
    try:
        for name in arguments.names:
            if arguments.ship is not None:
                print(ship(arguments.ship, name))
            else:
                slots = None if arguments.slots is None else int(arguments.slots)
                print(trained(name, slots, arguments.out))
    except ValueError as error:
        parser.exit(1, f"{error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "interrupted; the same command goes on\n")


if __name__ == "__main__":
    # Before PyTorch is imported: threads that wait actively take the cores from those
    # that compute.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
