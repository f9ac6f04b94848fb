"""Policies for the studies of schedulers: untrained ones, so that smoke runs need no others."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from inferway.learning.training import save
from inferway.scheduling.neural_policy import packed
from inferway.studies.scheduling.batch_course import columns, name_of, write_course
from inferway.studies.scheduling.other_learners import LEARNERS, TRIALS, trained_name
from inferway.studies.scheduling.train import KEPT, SEEDS, shipped, write_curve

NAMES = (
    *(*SEEDS, "rl-fo", "rl-po-b", "rl-fo-b", "periodic-rl-po", "periodic-rl-fo"),
    *("paper-rl-po", "paper-rl-fo"),
    *(f"deadline-{deadline}ms-rl-po" for deadline in (150, 250, 350, 450)),
)


@pytest.fixture(scope="session", autouse=True)
def policies(tmp_path_factory):
    """A folder with a policy of random weights and a learning curve for every name."""
    folder = tmp_path_factory.mktemp("policies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFERWAY_POLICIES", str(folder))
        for seed, name in enumerate(NAMES):
            stand_in(name, seed)
            write_curve(folder / f"{name}.csv", curve(goodput=0.7 + 0.001 * seed))
        for place, learner in enumerate(LEARNERS):  # each later one comes to less
            for seed in range(TRIALS):
                final = curve(goodput=0.6 - 0.05 * place + 0.001 * seed)
                write_curve(folder / f"{trained_name(learner, seed)}.csv", final)
        for name in ("rl-po-b", "rl-fo-b"):
            write_course(folder / f"{name_of(name)}.csv", course())
        yield folder


def stand_in(name, seed):
    """A network of random weights, whose routing is near to even."""
    wanted = shipped(name)
    said = wanted.control.about("recognise", seed=seed)
    random = np.random.default_rng(seed)
    sizes = (said.layout.size, 90, 60, said.outputs)
    layers = [
        (0.1 * random.standard_normal((n, m), np.float32), np.zeros(m, np.float32))
        for n, m in pairwise(sizes)
    ]
    file = wanted.file
    exported = file.with_suffix("")
    save(exported, layers, said)
    file.write_bytes(packed(exported))
    exported.unlink()


def curve(goodput, lines=40):
    """A line per update, rising to a goodput."""
    rows = []
    for line in range(lines):
        row = dict.fromkeys(KEPT, goodput * (line + 1) / lines)
        heavy = 0.95 * (line + 1) / lines
        rows.append(row | {"slots": 50_000 * (line + 1), "heavy_0": heavy, "heavy_1": heavy})
    return rows


def course(lines=20):
    """Batch sizes that come nearer to 1 in the normal state, and go up and down in bursts."""
    rows = []
    for line in range(lines):
        calm, burst = 1 + 4 / (1 + line), 3 + 2 * (-1) ** line
        sizes = {name: burst if name.endswith("bursty") else calm for name in columns()}
        rows.append({"slots": 50_000.0 * line, **sizes})
    return rows
