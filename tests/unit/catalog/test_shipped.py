"""The models in the package are what their profiles say, and every step of the ladder is a gain."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from inferway.catalog import TestSet, zoo
from inferway.profiling.intervals import estimate
from inferway.profiling.zoo import ladder_steps, measure, right_answers
from inferway.protocol import Signature, Tensor
from inferway.runtime import OnnxRuntime, inspect
from zoo.ladder import VARIANTS

NAMES = tuple(variant.name for variant in VARIANTS)
QUICK = NAMES[:-2]  # those that answer the whole test set in a few seconds
SIGNATURE = Signature(
    (Tensor("image", "FP32", (-1, 1, 32, 32)),), (Tensor("probabilities", "FP32", (-1, 10)),)
)


@pytest.fixture(scope="module")
def testset() -> TestSet:
    return zoo.testset()


@pytest.fixture(scope="module")
def paths() -> dict[str, Path]:
    return {name: zoo.model_path("digits", name) for name in NAMES}


@pytest.fixture(scope="module")
def quick_right(paths: dict[str, Path], testset: TestSet) -> dict[str, np.ndarray]:
    return right_answers({name: paths[name] for name in QUICK}, testset)


@pytest.fixture(scope="module")
def one_each(testset: TestSet) -> TestSet:
    """One image of each third source, so that the slow variants answer in seconds."""
    random = np.random.default_rng(1)
    order = random.permutation(len(testset))
    _, first = np.unique(testset.source[order], return_index=True)
    chosen = order[first[1::3]]
    return TestSet(testset.images[chosen], testset.labels[chosen], testset.source[chosen])


@pytest.mark.parametrize("name", NAMES)
def test_file_is_what_the_profile_says(name: str) -> None:
    path, profile = zoo.resolve(f"zoo://digits/{name}")
    assert inspect(path, digest=profile.digest) == SIGNATURE
    assert path.stat().st_size == profile.size_bytes
    assert [each.batch for each in profile.service] == [1, 8]
    assert profile.memory_bytes > 2 * profile.size_bytes * 0.9  # half precision, widened on loading


@pytest.mark.parametrize("name", QUICK)
def test_accuracy_is_what_the_profile_says(
    name: str, quick_right: dict[str, np.ndarray], testset: TestSet
) -> None:
    profile = zoo.profiles()[name]
    # Processors round differently; a handful of close calls may go the other way.
    assert quick_right[name].mean() == pytest.approx(profile.accuracy, abs=1e-3)
    interval = estimate(quick_right[name], testset.source, seed=1).interval
    assert interval == pytest.approx(profile.accuracy_interval, abs=2e-3)


def test_accuracy_of_the_slow_ones_lies_in_their_intervals(
    paths: dict[str, Path], one_each: TestSet
) -> None:
    right = right_answers({name: paths[name] for name in NAMES[-2:]}, one_each)
    for name, each in right.items():
        interval = estimate(each, one_each.source, seed=1).interval
        assert interval[0] <= zoo.profiles()[name].accuracy <= interval[1]


def test_the_ladder_is_strictly_ordered() -> None:
    profiles = list(zoo.profiles().values())
    assert tuple(profile.name for profile in profiles) == NAMES
    for below, above in itertools.pairwise(profiles):
        assert below.mean_s < above.mean_s
        assert below.accuracy < above.accuracy
    assert profiles[-1].mean_s >= 0.010
    assert profiles[-1].mean_s > 200 * profiles[0].mean_s


def test_quick_steps_are_significant(quick_right: dict[str, np.ndarray], testset: TestSet) -> None:
    steps = ladder_steps(quick_right, testset.source, seed=2)
    assert len(steps) == len(QUICK) - 1
    for found, told in zip(steps, zoo.load().steps, strict=False):
        assert found["p"] < 0.05
        assert found["interval"][0] > 0
        assert (found["from"], found["to"]) == (told["from"], told["to"])
        assert found["gain"] == pytest.approx(told["gain"], abs=2e-3)


def test_told_steps_and_ablation_are_significant() -> None:
    known = zoo.load()
    assert [(step["from"], step["to"]) for step in known.steps] == list(itertools.pairwise(NAMES))
    assert max(step["p"] for step in known.steps) < 0.05
    lost = {(entry["members"], entry["views"]): entry for entry in known.ablation}
    members, views = len(VARIANTS[-1].networks), len(VARIANTS[-1].views)
    assert lost[members - 1, views]["p"] < 0.05
    assert lost[1, views]["p"] < 0.05
    assert lost[1, 1]["p"] < 0.05


@pytest.mark.slow
def test_all_steps_are_significant(paths: dict[str, Path], testset: TestSet) -> None:
    right = right_answers(paths, testset, workers=2)
    for name, each in right.items():
        assert each.mean() == pytest.approx(zoo.profiles()[name].accuracy, abs=1e-3)
    for step in ladder_steps(right, testset.source, seed=2):
        assert step["p"] < 0.05
        assert step["gain"] > 0


def test_measuring_writes_profiles_that_go_first(data_home: Path) -> None:
    told: list[float] = []
    shipped = zoo.load()
    found = measure(
        folder=zoo.user_folder(),
        images=40,
        rounds=1,
        round_s=0.005,
        progress=lambda share, what: told.append(share),
    )
    assert zoo.load() == found
    assert found.origin == "measured"
    assert found.made["test_images"] == 40
    assert set(found.profiles) == set(NAMES)
    for name, profile in found.profiles.items():
        assert profile.digest == shipped.profiles[name].digest
        assert 0 < profile.mean_s < 1
    assert told == sorted(told)
    assert told[-1] == 1


def test_batches_answer_as_single_images_do(paths: dict[str, Path], testset: TestSet) -> None:
    for path in paths.values():
        runtime = OnnxRuntime(path)
        together = runtime.run({"image": testset.images[:4]})["probabilities"]
        alone = [
            runtime.run({"image": testset.images[i : i + 1]})["probabilities"][0] for i in range(4)
        ]
        np.testing.assert_allclose(together, alone, atol=1e-5)
        np.testing.assert_allclose(together.sum(axis=1), 1, atol=1e-5)
