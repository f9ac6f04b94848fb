"""`inferway check` reads the trained policies that a file names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import ABOUT, BOTH, SIGNS, arrays_of

from inferway.cli import main
from inferway.scheduling.neural_policy import About

FILE = """\
tasks:
  recognise:
    deadline: 300 ms
    variants:
      light: {accuracy: 0.7769, service: {mean: 10.7 ms}}
      heavy: {accuracy: 0.8278, service: {mean: 42.9 ms}}
  signs:
    deadline: 200 ms
    variants:
      tiny: {accuracy: 0.6, service: {mean: 20 ms}}
      large: {accuracy: 0.9, service: {mean: 50 ms}}
nodes:
  here:
    instances: {recognise/light: 2, recognise/heavy: 2, signs/tiny: 1, signs/large: 2}
    buffer: 15
scheduling: {policy: rl-po, checkpoint: store/policy.npz}
"""
TOGETHER = FILE.replace("policy.npz}", "policy.npz, tasks: [recognise, signs]}")
ALONE = FILE.replace(
    "  signs:\n    deadline", "  signs:\n    dispatch: {policy: deadline}\n    deadline"
)
SIGHTED = ALONE.replace("rl-po", "rl-fo")
BURSTS = """\
workload:
  recognise: {arrivals: {process: map, d0: [[-180.1, 0.1], [0.1, -10.1]], d1: [[180, 0], [0, 10]]}}
"""
Errors = Callable[..., list[str]]


@pytest.fixture
def errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Errors:
    """Check a file beside a policy, or what else is there; its errors about policies."""

    def checked(text: str, policy: About | bytes | None) -> list[str]:
        place = tmp_path / "store" / "policy.npz"
        place.parent.mkdir(exist_ok=True)
        if isinstance(policy, bytes):
            place.write_bytes(policy)
        elif policy is not None:
            arrays: dict[str, Any] = arrays_of(policy)
            np.savez(place, **arrays)
        file = tmp_path / "file.yaml"
        file.write_text(text)
        code = main(["check", str(file), "--json"])
        found = json.loads(capsys.readouterr().out)["errors"]
        assert code == (2 if found else 0)
        for one in found:
            assert one["field"] == "scheduling.checkpoint"
            assert text.splitlines()[one["line"] - 1].startswith("scheduling: ")
        return [one["message"].replace(f"{tmp_path}/", "") for one in found]

    return checked


def test_a_policy_for_its_tasks_is_well(errors: Errors) -> None:
    assert errors(TOGETHER, BOTH) == []
    assert errors(ALONE, ABOUT) == []
    assert errors(ALONE.replace("/policy.npz", ""), ABOUT) == []


def test_one_that_is_not_there_yet_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], errors: Errors
) -> None:
    assert errors(ALONE, None) == []
    assert main(["check", str(tmp_path / "file.yaml")]) == 0
    assert "scheduling.checkpoint: no such file yet: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "policy", "sentence"),
    [
        (ALONE, b"hello", "store/policy.npz is not a trained policy: "),
        (ALONE, SIGNS, "trained for 1 tiny and 2 large, not for 2 light and 2 heavy"),
        (ALONE, BOTH, "was trained for recognise and signs together, not for one task"),
        (TOGETHER, ABOUT, "was trained for one task, not for recognise and signs together"),
        (TOGETHER, replace(SIGNS, others=(ABOUT,)), "signs and recognise in this order"),
        (ALONE, replace(ABOUT, slot_s=2.0), "was trained with slots of 2 s, not of 1 s"),
        (
            ALONE,
            replace(ABOUT, deadline_s=0.2),
            "for a deadline of 200 ms, and the task has 300 ms",
        ),
        (SIGHTED, b"hello", "is not a trained policy"),
    ],
)
def test_another_one_is_an_error_in_one_sentence(
    errors: Errors, text: str, policy: Any, sentence: str
) -> None:
    (found,) = errors(text, policy)
    assert sentence in found


def test_a_policy_for_another_fleet_is_well_where_devices_are_given_out_anew(
    errors: Errors,
) -> None:
    others = replace(ABOUT, counts=(1, 1))
    (found,) = errors(ALONE, others)
    assert "trained for 1 light and 1 heavy, not for 2 light and 2 heavy" in found
    anew = ALONE.replace("    buffer: 15\n", "    buffer: 15\n    devices: {cpu: {cores: 8}}\n")
    assert errors(f"{anew}placement: {{policy: assign}}\n", others) == []


def test_what_a_policy_of_ones_own_calls_its_checkpoint_is_left_to_it(
    tmp_path: Path, errors: Errors
) -> None:
    own = "class Own:\n    @classmethod\n    def build(cls, conditions, checkpoint): ...\n"
    (tmp_path / "own.py").write_text(own)
    for means in ("7", "store/policy.npz"):
        named = f"scheduling: {{policy: './own.py:Own', checkpoint: {means}}}"
        assert errors(f"{ALONE[: ALONE.index('scheduling')]}{named}\n", b"hello") == []


def test_one_that_sees_the_workload_is_checked_with_it(errors: Errors) -> None:
    sighted = replace(ABOUT, policy="rl-fo", phases=2)
    assert errors(SIGHTED, sighted) == []
    assert errors(SIGHTED + BURSTS, sighted) == []
    (found,) = errors(SIGHTED + BURSTS, replace(sighted, phases=3))
    assert "for a workload of 3 random phases; this one has 2 random ones" in found
