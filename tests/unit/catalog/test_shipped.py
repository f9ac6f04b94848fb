"""The models in the package are what their profiles say, and every step of the ladder is a gain."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from inferway.catalog import TestSet, zoo
from inferway.deployment import Model, Task, Variant
from inferway.profiling.calibration import calibrated
from inferway.profiling.intervals import estimate
from inferway.profiling.measuring import ProfilingOptions, answers_of
from inferway.profiling.testset import ImageAnswers, accuracy_images, image_answers, labeled
from inferway.profiling.zoo import ladder_steps, measure
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
def nothing_kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder in which no answers are kept yet."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def quick(nothing_kept: Path) -> ImageAnswers:
    return image_answers("digits", QUICK)


@pytest.fixture(scope="module")
def one_each() -> TestSet:
    """One image of each third source, so that the slow variants answer in seconds."""
    tests, random = accuracy_images(), np.random.default_rng(1)
    order = random.permutation(len(tests))
    _, first = np.unique(tests.source[order], return_index=True)
    chosen = order[first[1::3]]
    return TestSet(tests.images[chosen], tests.labels[chosen], tests.source[chosen])


@pytest.mark.parametrize("name", NAMES)
def test_file_is_what_the_profile_says(name: str) -> None:
    path, profile = zoo.resolve(f"zoo://digits/{name}")
    assert inspect(path, digest=profile.digest) == SIGNATURE
    assert path.stat().st_size == profile.size_bytes
    assert [each.batch for each in profile.times.alone] == [1, 2, 4, 8, 16, 32, 64]
    assert profile.times.memory_bytes is not None
    # Half precision, widened on loading.
    assert profile.times.memory_bytes > 2 * profile.size_bytes * 0.9


def test_the_halves_are_of_300_originals(quick: ImageAnswers, testset: TestSet) -> None:
    np.testing.assert_array_equal(quick.source, testset.source)
    seen, unseen = set(quick.source[quick.bins]), set(quick.source[~quick.bins])
    assert (len(seen), len(unseen), seen & unseen) == (300, 300, set())
    assert set(accuracy_images().source) == unseen
    data = zoo.load().data
    assert (data.rows, data.groups, data.bins_rows, data.accuracy_rows) == (8400, 600, 4200, 4200)


@pytest.mark.parametrize("name", QUICK)
def test_accuracy_is_what_the_profile_says(name: str, quick: ImageAnswers) -> None:
    profile = zoo.profiles()[name]
    right = quick.right[~quick.bins, QUICK.index(name)]
    # Processors round differently; a handful of close calls may go the other way.
    assert right.mean() == pytest.approx(profile.accuracy, abs=1e-3)
    interval = estimate(right, quick.source[~quick.bins], seed=1).interval
    assert interval == pytest.approx(profile.accuracy_interval, abs=2e-3)


def test_bins_and_pairs_are_fitted_on_the_other_half(quick: ImageAnswers) -> None:
    known = zoo.load()
    pairs = {(pair.first, pair.second): pair for pair in known.pairs}
    assert pairs.keys() == set(itertools.permutations(NAMES, 2))
    for i, first in enumerate(QUICK):
        confidence = quick.confidence[quick.bins, i]
        for j, second in enumerate(QUICK):
            found = calibrated(confidence, quick.right[quick.bins, j].astype(float))
            if first == second:
                told = known.profiles[first].measured.confidence
                assert told is not None
                assert (told.kind, len(told.accuracy)) == ("probability", 20)
                assert told.accuracy == pytest.approx(found.accuracy, abs=5e-3)
                assert told.edges == pytest.approx(found.edges, abs=1e-3)
            else:
                assert pairs[first, second].second_accuracy == pytest.approx(
                    found.accuracy, abs=5e-3
                )


def test_answers_are_kept(
    quick: ImageAnswers, nothing_kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = list(nothing_kept.glob("inferway/answers/*.npz"))
    assert len(files) == len(QUICK)
    files[0].write_bytes(b"damaged")
    asked: list[str] = []
    again = image_answers("digits", QUICK, progress=lambda what, share: asked.append(what))
    for before, after in zip(quick, again, strict=True):
        np.testing.assert_array_equal(before, after)
    assert len({what for what in asked if what.startswith("accuracy of")}) == 1
    asked.clear()
    image_answers("digits", QUICK[:2], progress=lambda what, share: asked.append(what))
    assert not asked


def test_accuracy_of_the_slow_ones_lies_in_their_intervals(one_each: TestSet) -> None:
    variants = {
        name: Variant(name, model=Model(path, str(path)))
        for name in NAMES[-2:]
        if (path := zoo.model_path("digits", name))
    }
    data = labeled(one_each, "")
    found = answers_of(Task("digits", variants), data, ProfilingOptions(), folder=Path())
    for name, each in found.items():
        interval = estimate(each.score, one_each.source, seed=1).interval
        assert interval[0] <= zoo.profiles()[name].accuracy <= interval[1]


def test_the_ladder_is_strictly_ordered() -> None:
    profiles = list(zoo.profiles().values())
    assert tuple(profile.name for profile in profiles) == NAMES
    for below, above in itertools.pairwise(profiles):
        assert below.mean_s < above.mean_s
        assert below.accuracy < above.accuracy
    assert profiles[-1].mean_s >= 0.010
    assert profiles[-1].mean_s > 200 * profiles[0].mean_s


def test_quick_steps_are_significant(quick: ImageAnswers) -> None:
    right = dict(zip(QUICK, quick.right.T, strict=True))
    steps = ladder_steps(right, quick.source, seed=2)
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
def test_all_steps_are_significant(nothing_kept: Path) -> None:
    found = image_answers()
    right = dict(zip(NAMES, found.right.T, strict=True))
    for name, each in right.items():
        assert each[~found.bins].mean() == pytest.approx(zoo.profiles()[name].accuracy, abs=1e-3)
    for step in ladder_steps(right, found.source, seed=2):
        assert step["p"] < 0.05
        assert step["gain"] > 0


def test_measuring_writes_profiles_that_go_first(data_home: Path) -> None:
    told: list[float] = []
    shipped = zoo.load()
    found = measure(
        folder=zoo.user_folder(),
        sizes=(1,),
        rounds=1,
        round_s=0.005,
        progress=lambda what, share: told.append(share),
    )
    assert zoo.load() == found
    assert found.origin == "measured"
    assert (found.data, found.pairs, found.steps) == (shipped.data, shipped.pairs, shipped.steps)
    assert sorted(found.profiles) == sorted(NAMES)
    # Fastest first, by what was measured: a busy machine may turn neighbors round.
    means = [profile.mean_s for profile in found.profiles.values()]
    assert means == sorted(means)
    for name, profile in found.profiles.items():
        measured, before = profile.measured, shipped.profiles[name].measured
        # The answers are known; the times are this machine's, and no other's.
        assert measured == msgspec.structs.replace(before, machines=measured.machines)
        assert [each.batch for each in profile.times.alone] == [1]
        assert 0 < profile.mean_s < 1
        assert list(measured.machines) == list(found.machines)
    assert told == sorted(told)


def test_batches_answer_as_single_images_do(testset: TestSet) -> None:
    for name in NAMES:
        runtime = OnnxRuntime(zoo.model_path("digits", name))
        together = runtime.run({"image": testset.images[:4]})["probabilities"]
        alone = [
            runtime.run({"image": testset.images[i : i + 1]})["probabilities"][0] for i in range(4)
        ]
        np.testing.assert_allclose(together, alone, atol=1e-5)
        np.testing.assert_allclose(together.sum(axis=1), 1, atol=1e-5)
