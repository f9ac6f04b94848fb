"""Policies by name: where they are, what they are for, and how they come there."""

from __future__ import annotations

import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import inferway.studies.scheduling as package
from inferway.scheduling.neural_policy import fits, read
from inferway.studies.scheduling.train import (
    KEPT,
    LINES,
    at_deadline,
    curve_of,
    digest,
    network,
    ship,
    shipped,
    write_curve,
)

FOLDER = Path(package.__file__).parent / "policies"
THERE = sorted(file.name.partition(".")[0] for file in FOLDER.glob("*.npz.xz"))


@pytest.mark.parametrize(
    ("name", "policy", "workload", "deadline_s", "seed", "start"),
    [
        ("rl-po", "rl-po", "map", 0.3, 0, None),
        ("rl-fo-b", "rl-fo-b", "map", 0.3, 0, None),
        ("rl-po-seed-2", "rl-po", "map", 0.3, 2, None),
        ("periodic-rl-fo", "rl-fo", "periodic", 0.3, 0, None),
        ("deadline-150ms-rl-po", "rl-po", "map", 0.15, 0, "rl-po"),
        ("paper-rl-fo", "rl-fo", "map", 0.3, 0, None),
    ],
)
def test_names(name, policy, workload, deadline_s, seed, start):
    found = shipped(name)
    assert (found.policy, found.workload, found.seed) == (policy, workload, seed)
    assert found.deadline_s == pytest.approx(deadline_s)
    assert found.start == start
    assert found.control.scenario.deadline_s == pytest.approx(deadline_s)
    assert found.command.endswith(f"train {name}")
    assert found.paper == name.startswith("paper-")


def test_a_name_that_is_none():
    with pytest.raises(ValueError, match="no such policy as 'rl-xo'"):
        shipped("rl-xo")


def test_names_by_deadline():
    assert at_deadline("rl-po", 0.3) == "rl-po"
    assert at_deadline("rl-fo", 0.175) == "deadline-175ms-rl-fo"


def test_what_is_not_there_is_said_with_its_command(tmp_path, monkeypatch):
    monkeypatch.setenv("INFERWAY_POLICIES", str(tmp_path))
    assert digest("rl-po") == ""
    with pytest.raises(ValueError, match=r"no .*\.npz\.xz: `python -m .*train rl-po` trains it"):
        network("rl-po")
    with pytest.raises(ValueError, match=r"rl-po\.csv: `python -m .*train rl-po` makes it"):
        curve_of("rl-po")
    with pytest.raises(ValueError, match="`another` makes it"):
        curve_of("ddpg", "another")


def test_a_plain_policy_in_a_folder_of_ones_own_is_found(policies, tmp_path, monkeypatch):
    there = (policies / "rl-po.npz.xz").read_bytes()
    plain = tmp_path / "rl-po.npz"
    plain.write_bytes(lzma.decompress(there))
    monkeypatch.setenv("INFERWAY_POLICIES", str(tmp_path))
    assert network("rl-po").path == plain
    version = digest("rl-po")
    assert version
    # The packed one beside it counts more, as `--ship` writes that.
    (tmp_path / "rl-po.npz.xz").write_bytes(there)
    assert network("rl-po").path == tmp_path / "rl-po.npz.xz"
    assert digest("rl-po") != version


def test_a_curve_is_thinned_by_averages(tmp_path):
    rows = [dict.fromkeys(KEPT, float(line)) | {"slots": 10 * line} for line in range(250)]
    rows[3]["goodput_0"] = float("nan")  # nobody saw a burst then
    write_curve(tmp_path / "it.csv", rows)
    lines = (tmp_path / "it.csv").read_text().splitlines()
    assert len(lines) == LINES + 1
    values = np.array([list(map(float, line.split(","))) for line in lines[1:]])
    assert np.isfinite(values).all()
    assert values[-1, 0] == 2490
    assert values[0, 1] == pytest.approx(1.0)  # of 0, 1 and 2


def test_ship_takes_a_training(policies, tmp_path, monkeypatch):
    training = tmp_path / "training"
    training.mkdir()
    there = (policies / "rl-po.npz.xz").read_bytes()
    (training / "policy.npz").write_bytes(lzma.decompress(there))
    (training / "curve.csv").write_text((policies / "rl-po.csv").read_text())
    monkeypatch.setenv("INFERWAY_POLICIES", str(tmp_path / "there"))
    file = ship(training, "rl-po-seed-1")
    assert file == tmp_path / "there" / "rl-po-seed-1.npz.xz"
    assert file.read_bytes() == there
    for one, other in zip(read(file).weights, read(training / "policy.npz").weights, strict=True):
        assert one.dtype == np.float32
        assert one.tobytes() == other.tobytes()
    assert network("rl-po-seed-1").about.policy == "rl-po"
    assert len(curve_of("rl-po-seed-1")["slots"]) == 40
    with pytest.raises(ValueError, match=r"is of rl-po at 0\.3 s; rl-fo is of rl-fo"):
        ship(training, "rl-fo")


def test_the_command_says_what_is_wrong():
    found = subprocess.run(
        [sys.executable, "-m", "inferway.studies.scheduling.train", "rl-xo"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 1
    assert "no such policy as 'rl-xo'" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("name", THERE)
def test_what_is_shipped_fits_its_name(name):
    wanted = shipped(name)
    scenario = wanted.control.scenario
    known = read(FOLDER / f"{name}.npz.xz")
    fits(known, scenario.fleet, policy=wanted.policy, deadline_s=scenario.deadline_s, slot_s=1.0)
    assert known.about.slots > 0
    assert known.about.seed == wanted.seed
    assert (FOLDER / f"{name}.csv").is_file() == (wanted.start is None)
