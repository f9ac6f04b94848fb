"""A file's variants are measured once, kept, and used as long as they are what was measured."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profiles import changed, profiled

import inferway
from inferway.catalog import zoo
from inferway.deployment import DeploymentError
from inferway.deployment.profile import profile_path, read_profile
from inferway.machine import machine_hash
from inferway.profiling import DataError, LabeledData
from inferway.profiling import measuring as room
from inferway.profiling.data import halves
from inferway.profiling.measuring import ProfilingError

pytestmark = pytest.mark.usefixtures("memory_measured_once")


@pytest.fixture(scope="module")
def written(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the folder with the file's profile; nobody changes them."""
    copy = tmp_path_factory.mktemp("written") / "own"
    shutil.copytree(folder, copy)
    profiled(copy / "own.yaml")
    return copy


@pytest.fixture
def kept(written: Path, tmp_path: Path) -> Path:
    """A copy of the file with its profile, models and data."""
    shutil.copytree(written, tmp_path / "kept")
    return tmp_path / "kept" / "own.yaml"


def test_all_of_a_variant_is_measured(written: Path) -> None:
    known = read_profile(written / "own.yaml")
    assert known is not None
    task = known.tasks["digits"]
    assert (task.data.rows, task.data.score, task.data.seed) == (800, "class", 1)
    assert task.data.bins_rows + task.data.accuracy_rows == 800
    tiny, small = task.variants["tiny"], task.variants["small"]
    assert tiny.accuracy is not None
    assert small.accuracy is not None
    for one, accuracy in ((tiny.accuracy, 0.35), (small.accuracy, 0.85)):
        low, high = one.interval
        assert low < one.value < high
        assert one.value == pytest.approx(accuracy, abs=0.08)
        assert one.rows == task.data.accuracy_rows
    assert tiny.confidence is not None
    assert small.confidence is not None
    assert (tiny.confidence.kind, small.confidence.kind) == ("probability", "margin")
    assert len(small.confidence.accuracy) == 20 == len(small.confidence.edges) + 1
    assert small.confidence.accuracy[0] < 0.6 < 0.95 < small.confidence.accuracy[-1]
    assert sum(small.confidence.mass) == pytest.approx(1)
    assert small.confidence.error < 0.1
    seen = [one for one in small.confidence.observed if one is not None]
    assert len(small.confidence.observed) == 20
    assert np.mean(seen) == pytest.approx(small.accuracy.value, abs=0.05)
    for one in (tiny, small):
        here = one.machines[machine_hash()]
        assert [each.batch for each in here.alone] == [each.batch for each in here.busy] == [1]
        assert here.memory_bytes is not None
        assert here.peak_bytes is not None
        assert one.size_bytes is not None
        assert one.size_bytes < here.memory_bytes <= here.peak_bytes
    assert small.size_bytes == (written / "small.onnx").stat().st_size
    assert small.model == zoo.profiles()["small"].digest


def test_pairs_tell_what_asking_the_other_one_gains(written: Path) -> None:
    known = read_profile(written / "own.yaml")
    assert known is not None
    one, other = known.tasks["digits"].pairs
    assert (one.first, one.second, other.first) == ("tiny", "small", "small")
    assert len(one.first_accuracy) == len(one.second_accuracy) == 20
    assert np.mean(one.second_accuracy) == pytest.approx(0.85, abs=0.08)
    # Where even the better one is sure, the other one would lose.
    assert other.first_accuracy[-1] > other.second_accuracy[-1]


def test_the_file_goes_by_its_profile(written: Path) -> None:
    known = read_profile(written / "own.yaml")
    assert known is not None
    deployment = inferway.load(written / "own.yaml")
    for name, variant in deployment.tasks["digits"].variants.items():
        own = known.tasks["digits"].variants[name]
        assert own.accuracy is not None
        assert variant.accuracy == own.accuracy.value
        assert variant.confidence_bins == own.confidence
        steady_s = own.machines[machine_hash()].alone[0].steady_s
        assert variant.service_on("cpu").mean_s == steady_s
        batch = variant.batch_on("cpu")
        assert batch is not None
        assert batch.service_s == (steady_s,)
        assert variant.timed_by == {"*": "profile"}
    assert not [one for one in inferway.check(deployment) if one.kind.startswith("profile")]


def test_what_the_file_says_counts_more(kept: Path) -> None:
    said = "accuracy: 0.9, service: {mean: 5 ms}, batch: {sizes: [1], service: [7 ms]}"
    kept.write_text(kept.read_text().replace("batch: {sizes: [1]}}", f"{said}}}"))
    variant = inferway.load(kept).tasks["digits"].variants["tiny"]
    assert variant.accuracy == 0.9
    assert variant.service_on("cpu").mean_s == 5e-3
    batch = variant.batch_on("cpu")
    assert batch is not None
    assert batch.service_s == (7e-3,)
    assert variant.timed_by == {"*": "file"}


def test_the_profile_counts_more_than_the_zoos(kept: Path) -> None:
    kept.write_text(kept.read_text().replace("small.onnx", "zoo://digits/small"))
    own, shipped = inferway.load(kept), zoo.profiles()["small"]
    variant = own.tasks["digits"].variants["small"]
    assert variant.accuracy != shipped.accuracy
    assert variant.service_on("cpu").mean_s != shipped.mean_s
    assert variant.timed_by == {"cpu": "profile"}
    profile_path(kept).unlink()
    kept.write_text(
        "tasks: {digits: {variants: {small: {model: zoo://digits/small}}}}", encoding="utf-8"
    )
    variant = inferway.load(kept).tasks["digits"].variants["small"]
    assert variant.accuracy == shipped.accuracy
    assert variant.timed_by == {"cpu": "zoo"}


def test_another_model_of_the_same_name_is_not_what_was_measured(kept: Path) -> None:
    shutil.copy(zoo.model_path("digits", "mini"), kept.parent / "tiny.onnx")
    with pytest.raises(DeploymentError) as error:
        inferway.load(kept)
    assert "a target needs every accuracy, but tiny has no `accuracy`" in str(error.value)
    assert "tiny: the profile beside the file was measured on another model" in str(error.value)
    kept.write_text(kept.read_text().replace("accuracy_target: 0.5", ""))
    kept.write_text(kept.read_text().replace("batch: {sizes: [1]}}", "accuracy: 0.5}"))
    deployment = inferway.load(kept)
    tiny = deployment.tasks["digits"].variants["tiny"]
    assert (tiny.accuracy, tiny.timed_by, tiny.confidence_bins) == (0.5, {}, None)
    (warning,) = (one for one in inferway.check(deployment) if one.kind == "profile-stale")
    assert warning.field == "tasks.digits.variants.tiny"
    assert "own.yaml.profile.json was measured on another model of it" in warning.message


def test_a_confidence_whose_function_was_edited_is_not_what_was_measured(own: Path) -> None:
    mine = own.parent / "mine.py"
    mine.write_text("def sure(outputs):\n    return outputs['probabilities'].max(axis=1)\n")
    own.write_text(own.read_text().replace("margin", "./mine.py:sure"))
    profiled(own)
    assert inferway.load(own).tasks["digits"].variants["small"].confidence_bins is not None
    mine.write_text(mine.read_text().replace("return ", "return -"))
    deployment = inferway.load(own)
    small = deployment.tasks["digits"].variants["small"]
    assert (small.confidence_bins, small.graded) == (None, True)
    assert small.timed_by == {"*": "profile"}
    (warning,) = (one for one in inferway.check(deployment) if one.kind == "profile-stale")
    assert warning.field == "tasks.digits.variants.small"
    assert "its confidence is another one than own.yaml.profile.json" in warning.message
    mine.unlink()
    assert inferway.load(own).tasks["digits"].variants["small"].confidence_bins is None


def test_times_of_another_machine_are_not_used(kept: Path) -> None:
    def elsewhere(content: Any) -> None:
        here = machine_hash()
        content["machines"] = {"f" * 16: content["machines"][here] | {"processor": "Abacus 3"}}
        for one in content["tasks"]["digits"]["variants"].values():
            one["machines"] = {"f" * 16: one["machines"][here]}

    changed(kept, elsewhere)
    kept.write_text(kept.read_text().replace("batch: {sizes: [1]}", "service: {mean: 1 ms}", 1))
    kept.write_text(kept.read_text().replace("batch: {sizes: [1]}, ", ""))
    deployment = inferway.load(kept)
    _, small = deployment.tasks["digits"].variants.values()
    assert small.accuracy > 0.7
    assert small.service == {}
    warnings = [one for one in inferway.check(deployment) if one.kind == "profile-elsewhere"]
    assert [one.field for one in warnings] == ["tasks.digits.variants.small"]
    assert "are of another machine (Abacus 3)" in warnings[0].message


def test_a_variant_that_is_measured_in_part_is_not_another_model(kept: Path) -> None:
    def unanswered(content: Any) -> None:
        content["tasks"]["digits"]["variants"]["tiny"]["accuracy"] = None

    changed(kept, unanswered)
    with pytest.raises(DeploymentError) as error:
        inferway.load(kept)
    assert "has no accuracy of it yet; the same `inferway profile` goes on" in str(error.value)
    assert "another model" not in str(error.value)


def test_another_task_that_was_measured_meanwhile_stays(kept: Path) -> None:
    def meanwhile(what: str, share: float) -> None:
        def joined(content: Any) -> None:
            content["tasks"]["other"] = content["tasks"]["digits"]
            content["machines"]["f" * 16] = {"processor": "Abacus 3"}

        if what.startswith("service time of small"):
            changed(kept, joined)

    profiled(kept, again=True, progress=meanwhile)
    known = read_profile(kept)
    assert known is not None
    assert list(known.tasks) == ["digits", "other"]
    assert set(known.machines) == {machine_hash(), "f" * 16}


def test_times_of_batches_that_nothing_gives_are_asked_for(kept: Path) -> None:
    kept.write_text(kept.read_text().replace("sizes: [1]", "sizes: [1, 4]", 1))
    with pytest.raises(
        DeploymentError, match=r"variants\.tiny\.batch: needs `service`.* of 4;"
    ) as e:
        inferway.load(kept)
    assert "with `inferway profile own.yaml --data TEST --write`" in str(e.value)


def test_a_damaged_profile_is_refused_and_replaced_by_writing(own: Path) -> None:
    profile_path(own).write_text('{"schema": 1, "tasks": 3}')
    with pytest.raises(DeploymentError, match="the profile is malformed") as error:
        inferway.load(own)
    assert "measure anew with `inferway profile --write`, or remove it" in str(error.value)
    profile_path(own).write_text('{"schema": 7}')
    with pytest.raises(DeploymentError, match="schema 7 is not 1"):
        inferway.load(own)
    profiled(own)
    assert inferway.load(own).tasks["digits"].variants["small"].accuracy > 0.7


def test_two_files_never_share_a_profile(own: Path) -> None:
    other = own.with_suffix(".yml")
    assert profile_path(own) != profile_path(other)
    assert own.parent == profile_path(own).parent


def test_what_is_known_is_not_measured_again(kept: Path, nothing_runs: None) -> None:
    before = profile_path(kept).read_bytes()
    profiled(kept)
    assert profile_path(kept).read_bytes() == before


@pytest.mark.parametrize("change", [{"seed": 2}, {"again": True}, {"score": "top-3"}])
def test_other_settings_are_other_answers(
    kept: Path, nothing_runs: None, change: dict[str, Any]
) -> None:
    with pytest.raises(ProfilingError, match="digits/tiny: measured again"):
        profiled(kept, **change)


def test_measuring_again_keeps_what_other_machines_have_measured(kept: Path) -> None:
    def elsewhere(content: Any) -> None:
        content["machines"]["f" * 16] = {"processor": "Abacus 3"}
        for one in content["tasks"]["digits"]["variants"].values():
            one["machines"]["f" * 16] = one["machines"][machine_hash()]

    changed(kept, elsewhere)
    before = read_profile(kept)
    assert before is not None
    found = profiled(kept, again=True)
    old, new = before.tasks["digits"].variants["tiny"], found.variants["tiny"]
    assert new.machines["f" * 16] == old.machines["f" * 16]
    assert new.machines[machine_hash()] != old.machines[machine_hash()]


def test_answers_that_are_no_classes_have_no_confidence_unasked(own: Path) -> None:
    (own.parent / "mine.py").write_text("def near(outputs, labels):\n    return labels * 0.1\n")
    own.write_text(own.read_text().replace(", confidence: margin", ""))
    found = profiled(own, write=False, score=f"{own.parent}/mine.py:near")
    assert found.variants["small"].confidence is None
    assert found.measured.pairs == ()
    assert "confidence calibrated" not in str(found)


def test_other_data_keep_the_times(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(room, "service_times", run)
    with np.load(kept.parent / "test.npz") as file:
        np.savez(kept.parent / "half.npz", **{name: file[name][:400] for name in file.files})
    found = profiled(kept, data=kept.parent / "half.npz")
    assert found.measured.data.rows == 400
    assert set(found.variants["tiny"].machines) == {machine_hash()}


def test_pairs_that_are_not_there_are_measured(kept: Path) -> None:
    changed(kept, lambda content: content["tasks"]["digits"].update(pairs=[]))
    assert len(profiled(kept).measured.pairs) == 2


def test_a_new_variant_joins_those_that_are_known(kept: Path) -> None:
    (kept.parent / "again.onnx").write_bytes((kept.parent / "small.onnx").read_bytes())
    kept.write_text(kept.read_text() + "      again: {model: again.onnx, batch: {sizes: [1]}}\n")
    before = read_profile(kept)
    assert before is not None
    found = profiled(kept)
    tiny = before.tasks["digits"].variants["tiny"]
    assert found.variants["tiny"] == tiny
    assert list(found.variants) == ["tiny", "small", "again"]
    assert len(found.measured.pairs) == 6


@pytest.mark.parametrize("during", ["accuracy of small", "service time of small at batch 1, "])
def test_an_end_in_between_keeps_what_was_measured(own: Path, during: str) -> None:
    def stop(what: str, share: float) -> None:
        if what.startswith(during):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profiled(own, progress=stop)
    known = read_profile(own)
    assert known is not None
    tiny = known.tasks["digits"].variants["tiny"]
    assert tiny.accuracy is not None
    found = profiled(own)
    assert len(found.measured.pairs) == 2
    if "time" in during:
        assert found.variants["tiny"] == tiny  # to the last digit of its times
        assert len(known.tasks["digits"].pairs) == 2
    assert found.variants["tiny"].accuracy == tiny.accuracy
    assert found.variants["small"].machines


def test_progress_goes_from_0_to_1(own: Path) -> None:
    told: list[float] = []
    profiled(own, write=False, progress=lambda what, share: told.append(share))
    assert told[0] == 0
    assert told == sorted(told)
    assert told[-1] == pytest.approx(1)
    assert not profile_path(own).exists()


def test_f1_of_groups_has_an_interval(own: Path) -> None:
    found = profiled(own, write=False, score="f1").variants["small"].accuracy
    assert found is not None
    assert found.score == "f1"
    assert found.interval[0] < found.value < found.interval[1]


def groups_of(data: LabeledData, rows: np.ndarray) -> set[int]:
    assert data.groups is not None
    return set(data.groups[rows].tolist())


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_never_parted_and_halves_are_nearly_equal(seed: int) -> None:
    size = np.random.default_rng(seed).integers(1, 6, 60)
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(60), size))
    data = LabeledData({}, groups, groups, "")
    split = halves(data, seed)
    assert sorted([*split.bins, *split.accuracy]) == list(range(data.rows))
    assert not groups_of(data, split.bins) & groups_of(data, split.accuracy)
    assert abs(len(split.bins) - len(split.accuracy)) <= 5
    again = halves(data, seed)
    assert (again.bins == split.bins).all()
    assert (halves(data, seed + 1).bins.tolist()) != split.bins.tolist()


def test_one_group_cannot_be_split() -> None:
    alone = LabeledData({}, np.zeros(1), None, "")
    with pytest.raises(DataError, match="one row cannot be split into two halves"):
        halves(alone, 1)
    with pytest.raises(DataError, match="one group cannot be split into two halves"):
        halves(LabeledData({}, np.zeros(9), np.zeros(9, np.int64), ""), 1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"task": "digit"}, "there is no task digit; did you mean digits?"),
        ({"score": "bleu"}, "there is no score 'bleu'"),
        ({"score": "top-10"}, "digits/tiny: output 'probabilities' has 10 classes, so each is"),
        ({"output": "logits"}, "digits/tiny: there is no output 'logits'"),
    ],
)
def test_what_cannot_be_measured_is_said(own: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ProfilingError) as error:
        profiled(own, write=False, **options)
    assert sentence in str(error.value)


def test_a_confidence_that_there_is_not_is_said(own: Path) -> None:
    own.write_text(own.read_text().replace("confidence: margin", "confidence: sureness"))
    with pytest.raises(ProfilingError, match="digits/small: there is no output 'sureness'"):
        profiled(own, write=False)


def test_a_file_without_models_and_one_of_several_tasks_are_refused(tmp_path: Path) -> None:
    bare = tmp_path / "bare.yaml"
    bare.write_text("tasks: {a: {variants: {x: {accuracy: 0.5, service: {mean: 1 s}}}}}")
    with pytest.raises(ProfilingError, match="task a has no variant with a model"):
        inferway.profile(bare, tmp_path / "test.npz")
    two = tmp_path / "two.yaml"
    tiny = "{variants: {x: {model: zoo://digits/tiny}}}"
    two.write_text(f"tasks: {{a: {tiny}, b: {tiny}}}")
    with pytest.raises(ProfilingError, match="the file has the tasks a, b; name one with --task"):
        inferway.profile(two, tmp_path / "test.npz")
