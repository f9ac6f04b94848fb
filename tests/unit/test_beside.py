"""Benchmarks beside another checkout: fair turns, and a ratio with its interval."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from beside import Ratio, order, ratio_of, verdict_of  # noqa: E402

SCRIPT = f"""
import argparse, importlib.util, json, sys
sys.path.append({str(ROOT / "benchmarks")!r})
from beside import add_options, add_turn, compare
parser = argparse.ArgumentParser()
parser.add_argument("--json", action="store_true")
add_options(parser)
add_turn(parser)
options = parser.parse_args()
if options.turn:
    print("words before the last line")
    print(json.dumps({{"part": 0.5 if importlib.util.find_spec("only_of_the_other") else 0.25}}))
else:
    compare(__file__, [], options)
"""


def test_a_ratio_is_the_geometric_mean_and_its_interval_student_s() -> None:
    others = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert ratio_of(list(2 * others), list(others)) == pytest.approx((2.0, 2.0, 2.0))
    shifts = np.array([-3, -2, -1, 0, 1, 2, 3]) / 100
    found = ratio_of(list(1.1 * others * np.exp(shifts)), list(others))
    half = 2.446912 * np.std(shifts, ddof=1) / np.sqrt(7)  # Student's t of 6 degrees of freedom
    assert found == pytest.approx((1.1, 1.1 * np.exp(-half), 1.1 * np.exp(half)), rel=1e-6)


@pytest.mark.parametrize(
    ("low", "high", "said"), [(0.9, 1.1, "yes"), (0.9, 1.11, "not settled"), (1.11, 1.2, "no")]
)
def test_a_verdict_is_by_the_ends_of_the_interval(low: float, high: float, said: str) -> None:
    assert verdict_of(Ratio(1.0, low, high), 1.1) == said


def test_turns_begin_with_each_of_them_in_turn() -> None:
    assert [order("ab", turn) for turn in range(3)] == [["a", "b"], ["b", "a"], ["a", "b"]]


def test_either_checkout_s_package_is_measured_by_this_one_s_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "other" / "src").mkdir(parents=True)
    (tmp_path / "other" / "src" / "only_of_the_other.py").touch()
    command = [sys.executable, str(script), "--beside", str(tmp_path / "other"), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, Any] = json.loads(ran.stdout)
    assert found["turns"] == 7
    part, whole = found["parts"]["part"], found["parts"]["whole process"]
    assert (part["here_s"], part["beside_s"]) == (0.25, 0.5)
    assert [part[key] for key in ("ratio", "low", "high")] == pytest.approx([0.5] * 3)
    assert 0 < whole["low"] <= whole["ratio"] <= whole["high"]


def test_an_interval_is_told_of_seven_turns_or_more(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), "--beside", str(ROOT), "--turns", "6"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 2
    assert "at least 7 turns" in ran.stderr
