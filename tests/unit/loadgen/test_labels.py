"""What labels say of answers, and data that a server does not answer as it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.loadgen import DriveError, Record, Stream, replay, summary
from inferway.loadgen.labels import check, judge
from inferway.loadgen.message import encode
from inferway.profiling import ScoreError, score_of
from inferway.profiling.intervals import mean_score
from inferway.protocol import Signature, Tensor

FILE = """
tasks: {t: {accuracy_target: 0.5, variants: {even: {accuracy: 0.8, service: {rate: 100/s}}}}}
nodes: {here: {instances: {t/even: 1}}}
workload: {t: {arrivals: {process: poisson, rate: 50/s}}}
"""
REQUESTS = np.array([3, 5, 8, 9])


def said(*classes: int) -> dict[str, np.ndarray]:
    return {"y": np.eye(4, dtype=np.float32)[list(classes)]}


def test_answers_of_several_shapes_and_others_requests() -> None:
    answers = [(np.array([8, 1, 3]), said(2, 0, 1)), (np.array([9]), {"z": np.array([[0.1, 0.9]])})]
    found = judge(score_of("f1"), np.array([1, 1, 1, 1]), REQUESTS, answers)
    np.testing.assert_array_equal(found.score, [1, np.nan, 0, 1])
    assert found.answered.tolist() == [1, -1, 2, 1]
    assert found.true.tolist() == [1, 1, 1, 1]


def test_texts_are_numbered() -> None:
    words = np.array([b"cat", b"ape", b"dog"], object)
    answers = [(np.array([3, 5, 9]), {"y": words})]
    labels = np.array(["cat", "bee", "cat", "dog"])
    found = judge(score_of("f1"), labels, REQUESTS, answers)
    np.testing.assert_array_equal(found.score, [1, 0, np.nan, 1])
    # ape, bee, cat, dog
    assert found.true.tolist() == [2, 1, 2, 3]
    assert found.answered.tolist() == [2, 0, -1, 3]


def test_answers_that_are_no_classes_have_none() -> None:
    labels = np.array([[1, 2], [3, 4], [5, 6], [7, 8]])
    answers = [(REQUESTS, {"y": np.array([[1, 2], [3, 5], [5, 6], [7, 8]])})]
    found = judge(score_of("exact-match"), labels, REQUESTS, answers)
    assert found.score.tolist() == [1, 0, 1, 1]
    assert {*found.true.tolist(), *found.answered.tolist()} == {-1}


def test_every_label_is_looked_at_beforehand() -> None:
    with pytest.raises(ScoreError, match=r"task 't': output 'y' has 4 classes, .* a label is 7"):
        check(score_of("class"), "t", np.array([1, 2, 7]), said(1))


def test_a_function_of_the_users_is_asked_once(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def f(outputs, labels):\n    assert len(labels) == 1\n    return [1.0]\n")
    check(score_of(f"{mine}:f"), "t", np.arange(5), said(1))


def record(**columns: Any) -> Record:
    count = len(columns["item"])
    empty = np.zeros(count)
    return Record(
        task="t",
        variants=("a",),
        intended_s=empty,
        sent_s=empty,
        done_s=empty,
        status=np.full(count, 200, np.int16),
        variant=np.zeros(count, np.int16),
        predicted_class=np.array(columns.pop("said"), np.int32),
        predicted_s=empty,
        item=np.array(columns.pop("item"), np.int32),
        label=np.array(columns.pop("label"), np.int32),
        waited=np.zeros(count, np.bool_),
        cpu_s=0.0,
        generated=count,
        **columns,
    )


def test_the_interval_is_that_of_profiles_with_equal_inputs_together() -> None:
    item, answers = [0, 1, 1, 2, 3, 3, 3, 4], [0, 1, 1, 0, 0, 0, 0, 0]
    one = record(item=item, said=answers, label=[0] * 8)
    found = summary(one, interval=True)
    right = np.array(answers) == 0
    expected = mean_score(right.astype(float), np.array(item), seed=1)
    assert (found.accuracy, found.accuracy_interval) == (expected.value, expected.interval)
    assert summary(one).accuracy_interval is None
    judged = found.judged(0.5, overloaded=False)
    assert judged.promise is None  # without the profiles' accuracies nothing is promised
    judged = summary(one, {"a": 0.7}, interval=True).judged(0.5, overloaded=False)
    assert judged.promise is not None
    labels = {"mean": expected.value, "interval": expected.interval}
    assert judged.promise.labels == labels


def test_what_is_saved_keeps_scores(tmp_path: Path) -> None:
    scores = np.array([0.25, np.nan, 1.0])
    one = record(
        item=[0, 1, 2], said=[0] * 3, label=[-1] * 3,
        score=scores, scored="top-5", group=np.array([7, 7, 8]),
    )  # fmt: skip
    one.save(tmp_path / "r.npz")
    loaded = Record.load(tmp_path / "r.npz")
    np.testing.assert_array_equal(loaded.score, scores)
    assert (loaded.scored, loaded.group.tolist()) == ("top-5", [7, 7, 8])
    assert summary(loaded).accuracy == pytest.approx(0.625)
    assert loaded.only(np.array([True, False, True])).group.tolist() == [7, 8]


def test_a_score_needs_labels() -> None:
    stream = Stream("t", [0.0], np.zeros((1, 4)), score=score_of("class"))
    with pytest.raises(DriveError, match="has a score and no labels"):
        stream.validated()


def data(tmp_path: Path) -> Path:
    path = tmp_path / "test.npz"
    np.savez(path, x=np.eye(4, dtype=np.float32), labels=np.arange(4))
    return path


@pytest.fixture
def deployment(tmp_path: Path) -> inferway.Deployment:
    (tmp_path / "file.yaml").write_text(FILE)
    return inferway.load(tmp_path / "file.yaml")


def test_a_wrong_first_request_ends_the_drive(
    serve: Any, deployment: inferway.Deployment, tmp_path: Path
) -> None:
    async def behave(number: int) -> int:
        return 400

    server = serve(behave)
    server.complaint = "not so"
    sentence = "the first request of the data for the task 't' failed: not so"
    with pytest.raises(DriveError, match=sentence):
        inferway.drive(deployment, server.url, data=data(tmp_path))
    assert len(server.requests) == 1


def test_a_server_that_is_busy_first_is_driven_all_the_same(
    serve: Any, deployment: inferway.Deployment, tmp_path: Path
) -> None:
    async def behave(number: int) -> int:
        return 429 if number == 0 else 200

    server = serve(behave)
    found = inferway.drive(deployment, server.url, duration=0.5, data=data(tmp_path))
    assert found.tasks["t"].accuracy == 1.0
    assert found.records["t"].item.max() == 3


def test_answers_that_do_not_fit_are_failures(serve: Any, images: np.ndarray) -> None:
    server = serve()
    server.output = "other"
    stream = Stream("t", [0.0, 0.0], images, [0, 1, 2, 3], score=score_of("class"))
    (found,) = replay(server.url, [stream])
    assert found.failures() == {"no answer: the answer lacks the output 'y'": 2}
    assert np.isnan(found.score).all()


def test_texts_go_as_json_and_raw() -> None:
    signature = Signature(
        (Tensor("word", "BYTES", (-1, 2)), Tensor("gap", "BYTES", (-1,))),
        (Tensor("y", "FP32", (-1, 2)), Tensor("z", "FP32", (-1, 2))),
    )
    words = np.array([[b"a", "ü".encode()]], object)
    (plain,) = encode("t", signature, {"word": words}, binary=False, every=True)
    assert '"data":["a","ü"]' in plain.decode()
    assert '"data":[""]' in plain.decode()
    assert plain.count(b'"name"') == 4
    (raw,) = encode("t", signature, {"word": words})
    assert raw.endswith(b"\1\0\0\0a\2\0\0\0\xc3\xbc\0\0\0\0")
    words[0, 0] = b"\xff"
    with pytest.raises(DriveError, match="'word' holds bytes that are not UTF-8"):
        encode("t", signature, {"word": words}, binary=False)
