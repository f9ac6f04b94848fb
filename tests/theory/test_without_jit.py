"""With the JIT off everything decides the same, and lets itself be broken: one process runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import test_routed
import without_jit
from systems import HERE, close


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """What the script prints, from a process of its own in which nothing is compiled."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "without_jit.py")],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_policies_decide_the_same(plain: dict[str, Any]) -> None:
    compiled = without_jit.decisions()
    assert compiled.keys() == plain["decisions"].keys()
    for name, found in compiled.items():
        expected = plain["decisions"][name]
        assert found[:-1] == expected[:-1], name
        assert found[-1] == pytest.approx(expected[-1], abs=1e-9)
        assert len(set(found)) > 2, f"{name} has a course that shows too little"
        # The most accurate class is the one that is never saturated.
        if not name.endswith("saturated") and name != "most-accurate-only":
            assert found != compiled[f"{name}, saturated"], name


def test_placement_decides_the_same(plain: dict[str, Any]) -> None:
    assert without_jit.placements() == plain["placements"]


def test_engines_come_to_the_same_numbers(plain: dict[str, Any]) -> None:
    compiled, expected = without_jit.numbers(), plain["numbers"]
    courses = [
        [[float(text) for text in row] for row in one.pop("course")] for one in (compiled, expected)
    ]
    close(compiled, expected)
    close(*courses)
    assert compiled["escalate"]["escalated"][0]["share"] > 0.02


def test_slotted_sites_come_to_the_same_numbers(plain: dict[str, Any]) -> None:
    for found, expected in zip(plain["slotted"], test_routed.numbers(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_broken_simulator_fails_loudly(plain: dict[str, Any]) -> None:
    said = plain["broken"]
    assert said["made"].startswith("ConservationError: 200 requests entered, 201 left and 0 are")
    assert "Little's law does not hold" in said["aged"]
    assert said["lost"].startswith("ConservationError: 200 requests entered, ")


@pytest.mark.parametrize("decision", ["markov 7", "markov -3", "general 7", "general -3"])
def test_a_decision_that_is_none_is_said(plain: dict[str, Any], decision: str) -> None:
    assert plain["broken"][decision] == (
        "PolicyError: policy ./policies/wrong.py:Wrong returned a number that is neither a server "
        "of 0..4 nor REJECT nor HOLD"
    )
