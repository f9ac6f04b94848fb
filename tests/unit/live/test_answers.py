"""What labels come to over restarts, where a variant or the program is another one by then."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.deployment.tasks import Feedback
from inferway.live import ServeError, Server
from inferway.live.answers import AnswerBook, ComparedAnswer, ServedModel
from inferway.live.build import check_at_node
from inferway.live.feedback import FeedbackItem, VariantAccuracy
from inferway.live.log import logger
from inferway.live.request import InferRequest, Outcome
from inferway.protocol import RefusalError, Signature, Tensor


def answered(name: str) -> InferRequest:
    request = InferRequest({}, 1, lambda request: None, None, 0.0)
    request.id, request.variant, request.outcome = name.encode(), "a", Outcome.ANSWERED
    return request


def book_of(path: Path, profile: float) -> tuple[AnswerBook, dict[str, ServedModel]]:
    book, served = AnswerBook(path, "t", None), {"a": ServedModel("model", profile)}
    book.follow(Feedback(), served)
    return book, served


@pytest.mark.parametrize("labels", [200, 600])
def test_what_labels_say_is_not_taken_from_a_new_profile_again(tmp_path: Path, labels: int) -> None:
    def estimate(profile: float, first: int, told: range) -> float | None:
        """Of a server's run with this profile: answers from the first on, and feedback on some."""
        book, served = book_of(tmp_path / "answers", profile)
        for number in range(first, first + 2 * labels):
            book.note(answered(str(number)), served)
        items = [FeedbackItem(id=str(one), correct=one % 2 == 0) for one in told]
        assert book.join(items).matched == labels
        asyncio.run(book.close())
        return book.estimates["a"]

    fallen = estimate(0.8, 0, range(labels))
    assert fallen is not None
    assert 0.3 < fallen < 0.55
    # Somebody has measured that as well; the answers of before are labeled, and the new ones.
    assert estimate(0.5, 2 * labels, range(labels, 2 * labels)) == pytest.approx(0.5, abs=0.01)
    again = estimate(0.5, 4 * labels, range(4 * labels, 5 * labels))
    assert again == pytest.approx(0.5, abs=0.01)


def test_a_state_that_another_version_has_written_is_begun_anew(tmp_path: Path) -> None:
    asyncio.run(book_of(tmp_path / "answers", 0.8)[0].close())
    with sqlite3.connect(tmp_path / "answers") as base:
        base.execute("INSERT INTO estimated VALUES ('a', 'model', ?)", (b"\x94\x00",))
    base.close()
    book, served = book_of(tmp_path / "answers", 0.8)
    book.note(answered("1"), served)
    assert book.join([FeedbackItem(id="1", correct=True)]).matched == 1
    assert (book.estimates, book.lost) == ({"a": 0.8}, 0)
    asyncio.run(book.close())


def test_without_river_an_alarm_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferway.dispatch.drift_alarm.find_spec", lambda name: None)

    def server(drift: dict[str, bool]) -> Server:
        task = {
            "feedback": {},
            "drift": drift,
            "variants": {"tiny": {"model": "zoo://digits/tiny"}},
        }
        return Server(inferway.load({"tasks": {"digits": task}}))

    with pytest.raises(ServeError, match=r"digits\.drift: drift alarms need river.*way\[drift"):
        server({})
    server({"alarm": False})
    model = {"model": "zoo://digits/tiny"}
    network = inferway.load(
        {
            "tasks": {"digits": {"feedback": {}, "drift": {}, "variants": {"tiny": model}}},
            "nodes": {"cloud": {"repository": True}, "edge": {}},
            "network": {"links": [{"between": ["cloud", "edge"], "rtt": "1 ms"}]},
        }
    )
    with pytest.raises(ServeError, match=r"digits\.drift: drift alarms need river.*way\[drift"):
        check_at_node(network)


@pytest.mark.parametrize("restarted", [False, True])
def test_an_alarm_after_a_profile_has_come_counts_no_answer_from_before_it(
    tmp_path: Path, restarted: bool
) -> None:
    pytest.importorskip("river.drift", reason="alarms need river: pip install 'inferway[drift]'")
    random, log = Random(3), logger("error")
    book, asked = AnswerBook(tmp_path / "answers", "t", log), 0

    def label(profile: float | None, count: int, accuracy: float) -> VariantAccuracy:
        nonlocal asked
        served = {"a": ServedModel("model", profile)}
        book.follow(Feedback(), served, watch=True)
        for _ in range(count // 50):
            names = [str(number) for number in range(asked, asked + 50)]
            asked += 50
            for name in names:
                book.note(answered(name), served)
            book.join([FeedbackItem(id=one, correct=random.random() < accuracy) for one in names])
        return book.measured["a"]

    assert label(None, 1000, 0.9).estimate is None
    if restarted:
        asyncio.run(book.close())
        book = AnswerBook(tmp_path / "answers", "t", log)
    told = label(0.9, 2000, 0.9)
    assert (told.alarms, told.labels) == (0, 3000)
    assert told.estimate == pytest.approx(0.9, abs=0.03)
    told = label(0.9, 1300, 0.75)
    assert (told.alarms, told.labels) == (1, 4300)
    assert told.estimate == pytest.approx(0.75, abs=0.05)
    asyncio.run(book.close())


def test_shadows_bring_what_counts_nearer_over_restarts(tmp_path: Path) -> None:
    """All answers are compared with a model that is always right, and one in ten is labeled."""
    random, path = Random(5), tmp_path / "answers"
    book, served = book_of(path, 0.9)
    right = {str(number): random.random() < 0.75 for number in range(6_000)}
    names, reference = [*right], "best model"
    for first in range(0, len(names), 1_000):
        if first == 3_000:
            asyncio.run(book.close())
            book, served = book_of(path, 0.9)
        some = names[first : first + 1_000]
        for name in some:
            book.note(answered(name), served)
        for name in some:
            book.compare(ComparedAnswer(name, float(right[name]), 1.0, reference))
        book.join([])  # what waits is written
        book.join([FeedbackItem(id=name, correct=right[name]) for name in some[::10]])
    told, true = book.measured["a"], sum(right.values()) / len(right)
    assert (told.labels, told.compared) == (600, 6_000)
    assert told.estimate is not None
    assert told.mean is not None
    assert abs(told.mean - true) > 0.01
    assert abs(told.estimate - true) < 0.25 * abs(told.mean - true)
    asyncio.run(book.close())
    book, served = book_of(path, 0.9)
    book.join([])
    book._turn()
    assert book.estimates["a"] == told.estimate
    asyncio.run(book.close())


@pytest.mark.parametrize("binary", [False, True])
def test_the_class_of_another_nodes_answer_is_read_when_it_is_written(binary: bool) -> None:
    signature = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 3)),))
    scores = [[0.1, 0.7, 0.2], [0.1, 0.2, 0.7]]
    output: dict[str, Any] = {"name": "y", "datatype": "FP32", "shape": [2, 3]}
    raw = np.array(scores, np.float32).tobytes()
    output |= {"parameters": {"binary_data_size": len(raw)}} if binary else {"data": scores}
    head = json.dumps({"model_name": "t", "outputs": [output]}).encode()
    book, served = AnswerBook(None, "t", None), {"a": ServedModel("model", 0.9)}
    book.follow(Feedback(), served)
    sent = {
        "whole": (head + raw, b"%d" % len(head)) if binary else (head, None),
        "torn": (head[:-5], None),
        "none": (b"", b"no number"),
        "large": (head + b" " * 20_000, None),
    }
    for name, (body, json_length) in sent.items():
        request = answered(name)
        request.rows, request.passed = 2, SimpleNamespace(body=body, json_length=json_length)
        book.note(request, served, signature)
    # What a neighbor has sent here is its own answer.
    hop = answered("hop")
    hop.raw = SimpleNamespace(path=b"edge")
    book.note(hop, served, signature)
    said = book.join([FeedbackItem(id="whole", label=[1, 0]), FeedbackItem(id="hop", score=1)])
    assert (said.matched, said.unknown) == (1, ["hop"])
    assert book.measured["a"].mean == 0.5
    for name in ("torn", "none", "large"):
        with pytest.raises(RefusalError, match="has no class that a label could be compared with"):
            book.join([FeedbackItem(id=name, label=[1, 0])])
    asyncio.run(book.close())


def test_another_profile_or_model_counts_only_once_its_labels_have_been_looked_up() -> None:
    book, served = AnswerBook(None, "t", None), {"a": ServedModel("model", 0.9)}
    book.follow(Feedback(), served)
    for number in range(600):
        book.note(answered(str(number)), served)
    book.join([FeedbackItem(id=str(number), correct=False) for number in range(600)])
    assert book.estimates == {"a": 0.0}
    book.follow(Feedback(), served)
    assert book.estimates == {"a": 0.0}
    book.follow(Feedback(), {"a": ServedModel("another", 0.9)})
    assert book.estimates == {}
    book._turn()
    assert book.estimates == {"a": 0.9}
    asyncio.run(book.close())


def test_a_model_that_comes_while_labels_are_looked_up_does_not_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book, served = AnswerBook(None, "t", None), {"a": ServedModel("model", 0.9)}
    book.follow(Feedback(), served)
    for number in range(600):
        book.note(answered(str(number)), served)
    find = book._find

    def late(variant: str, model: str) -> Any:
        book.follow(Feedback(), {"a": ServedModel("another", 0.9)})
        return find(variant, model)

    book.join([FeedbackItem(id=str(number), correct=False) for number in range(600)])
    monkeypatch.setattr(book, "_find", late)
    book._measure()
    assert book.estimates == {}
    asyncio.run(book.close())
