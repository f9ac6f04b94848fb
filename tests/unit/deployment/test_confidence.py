"""Bins and pairs come from the file's profile, else from the zoo's, while models are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from profiles import DATA, bins_of, measured, of_zoo, pair_of

from inferway.catalog import zoo
from inferway.catalog.profile import TaskProfile
from inferway.deployment import Task, load
from inferway.deployment.profile import DeploymentProfile, write_profile

Write = Callable[..., Path]
MakeModel = Callable[..., Path]

TINY, LARGE, OWN = bins_of(0.2, 0.8), bins_of(0.7, 0.9), bins_of(0.3, 0.7)
TASK = """
tasks:
  t:
    variants:
      fast: {model: zoo://letters/tiny%s}
      slow: {model: zoo://letters/large}
"""


def digest_of(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def letters(model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Put a zoo of two variants in place of the shipped ones; digests by variant."""
    paths = {"tiny": model("tiny.onnx", outputs=3), "large": model("large.onnx", outputs=5)}
    digests = {name: digest_of(path) for name, path in paths.items()}
    assert digests["tiny"] != digests["large"]
    profiles = {
        "tiny": of_zoo("tiny", measured(digests["tiny"], bins=TINY)),
        "large": of_zoo("large", measured(digests["large"], bins=LARGE)),
    }
    pairs = (pair_of("tiny", "large", TINY, 0.6, 0.95), pair_of("large", "tiny", LARGE, 0.4, 0.5))
    folder = paths["tiny"].parent
    known = zoo.Zoo("letters", "shipped", profiles, DATA, pairs, folders=(folder,))
    monkeypatch.setattr(zoo, "load", lambda name="letters": {"letters": known}[name])
    return digests


def task_of(file: Path) -> Task:
    return load(file).tasks["t"]


def keep(file: Path, one: TaskProfile) -> None:
    write_profile(file, DeploymentProfile(tasks={"t": one}))


def test_variants_of_a_zoo_have_its_bins_and_pairs(write: Write, letters: Any) -> None:
    task = task_of(write(TASK % ""))
    assert [one.confidence_bins for one in task.variants.values()] == [TINY, LARGE]
    assert task.pairs == (
        pair_of("fast", "slow", TINY, 0.6, 0.95),
        pair_of("slow", "fast", LARGE, 0.4, 0.5),
    )


@pytest.mark.parametrize(
    "said", [", confidence: margin", ", providers: [CPUExecutionProvider]"], ids=["margin", "other"]
)
def test_a_confidence_that_was_not_measured_has_none(write: Write, letters: Any, said: str) -> None:
    task = task_of(write(TASK % said))
    assert task.variants["fast"].confidence_bins is None
    assert task.variants["slow"].confidence_bins == LARGE
    assert "fast" not in {pair.first for pair in task.pairs}


def test_the_files_profile_counts_more_than_the_zoos(write: Write, letters: Any) -> None:
    file = write(TASK % "")
    variants = {"fast": measured(letters["tiny"], bins=OWN), "slow": measured(letters["large"])}
    own = pair_of("fast", "slow", OWN, 0.5, 0.6)
    keep(file, TaskProfile(DATA, variants, (own,)))
    task = task_of(file)
    assert [one.confidence_bins for one in task.variants.values()] == [OWN, LARGE]
    # The file's profile has no bins of the slow one: the zoo's stand in, with their pair.
    assert task.pairs == (own, pair_of("slow", "fast", LARGE, 0.4, 0.5))


def test_the_zoos_pairs_are_not_for_other_bins(write: Write, letters: Any) -> None:
    file = write(TASK % "")
    keep(file, TaskProfile(DATA, {"fast": measured(letters["tiny"], bins=OWN)}))
    task = task_of(file)
    assert task.variants["fast"].confidence_bins == OWN
    assert [(pair.first, pair.second) for pair in task.pairs] == [("slow", "fast")]


@pytest.mark.parametrize("changed", ["fast", "slow"])
def test_pairs_of_another_model_are_not_used(write: Write, letters: Any, changed: str) -> None:
    file = write(TASK % "")
    variants = {
        "fast": measured(letters["tiny"], bins=TINY),
        "slow": measured(letters["large"], bins=LARGE),
    }
    own = pair_of("fast", "slow", TINY, 0.5, 0.6)
    keep(file, TaskProfile(DATA, variants, (own,)))
    assert task_of(file).pairs[0] == own
    variants[changed] = msgspec.structs.replace(variants[changed], model="sha256:" + "1" * 64)
    keep(file, TaskProfile(DATA, variants, (own,)))
    assert task_of(file).pairs[0] == pair_of("fast", "slow", TINY, 0.6, 0.95)


def test_models_of_the_users_own_have_pairs_of_its_profile(write: Write, model: MakeModel) -> None:
    fast, slow = model("fast.onnx"), model("slow.onnx")
    file = write("tasks: {t: {variants: {fast: {model: fast.onnx}, slow: {model: slow.onnx}}}}")
    assert task_of(file).pairs == ()
    variants = {"fast": measured(digest_of(fast), bins=OWN), "slow": measured(digest_of(slow))}
    own = pair_of("fast", "slow", OWN, 0.5, 0.6)
    keep(file, TaskProfile(DATA, variants, (own,)))
    assert task_of(file).pairs == (own,)
