"""The trained policies that the studies evaluate, and what each was trained for.

They lie in ``policies`` beside this file, `NAME.npz` with its learning curve `NAME.csv`, or in the
folder that the environment variable INFERWAY_POLICIES names.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from inferway.learning.site import Control
from inferway.scheduling.neural_policy import NeuralPolicy, read
from inferway.studies.scheduling.burst import DEADLINE_S, control

SEEDS = ("rl-po", "rl-po-seed-1", "rl-po-seed-2")  # three trainings of the same policy

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
    paper: bool = False  # trained with the paper's own settings and slots, none of ours

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
        return folder() / f"{self.name}.npz"

    @property
    def command(self) -> str:
        """Command that makes it."""
        return f"python -m inferway.studies.scheduling.train {self.name}"


def shipped(name: str) -> Shipped:
    """Find what a name such as ``periodic-rl-po`` or ``deadline-150ms-rl-po`` means.

    Raises
    ------
    ValueError
        For a name of another form.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f"no such policy as {name!r}: expected "
            "[paper-][periodic-][deadline-150ms-]rl-po[-b][-seed-1], or rl-fo"
        )
    deadline = match["deadline"]
    return Shipped(
        name=name,
        policy=match["policy"],
        workload="periodic" if match["periodic"] else "map",
        deadline_s=DEADLINE_S if deadline is None else int(deadline) / 1000,
        seed=int(match["seed"] or 0),
        paper=match["paper"] is not None,
    )


def at_deadline(policy: str, deadline_s: float) -> str:
    """The name of a policy for this deadline."""
    return policy if deadline_s == DEADLINE_S else f"deadline-{round(1000 * deadline_s)}ms-{policy}"


def folder() -> Path:
    """Folder of the policies."""
    given = os.environ.get("INFERWAY_POLICIES")
    return Path(given) if given else Path(__file__).parent / "policies"


def digest(name: str, suffix: str = ".npz") -> str:
    """Version of a file: empty where there is none."""
    file = folder() / f"{name}{suffix}"
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.is_file() else ""


def network(name: str) -> NeuralPolicy:
    """Read a policy.

    Raises
    ------
    ValueError
        Where it is not there, with the command that makes it, or it is none.
    """
    known = shipped(name)
    if not known.file.is_file():
        raise ValueError(f"there is no {known.file}: `{known.command}` trains it")
    return read(known.file)


def curve_of(name: str, command: str | None = None) -> dict[str, list[float]]:
    """Read a learning curve: columns by name.

    Parameters
    ----------
    name
        Of the file without its suffix.
    command
        What makes it, where it is none of a shipped policy.

    Raises
    ------
    ValueError
        Where it is not there.
    """
    file = folder() / f"{name}.csv"
    if not file.is_file():
        made_by = command or shipped(name).command
        raise ValueError(f"there is no learning curve {file}: `{made_by}` makes it")
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {key: [float(row[key]) for row in rows] for key in rows[0]}
