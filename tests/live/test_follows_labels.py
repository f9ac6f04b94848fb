"""A variant falls on a live server: by labels the promise is kept again, by profiles it is not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.live import Keys

TARGET, FALL = 0.9, 0.1
LABELED = 0.5
"""Share of the answers: at 5 % the same labels need ten times the requests, and minutes."""
WIRES = 4
"""Requests that are under way at once."""
BEFORE, AFTER, LAST = 500, 6_000, 2_000
"""Labels before the fall and after it, and how many at the end are looked at."""
TOGETHER = 100
"""Labels that are sent together."""
SAYS, ASKS = "a-key-of-feedback", "a-key-of-all-else"
KEYS = [f"feedback={SAYS}", f"infer+read+admin={ASKS}"]
CODE = """\
import time

import numpy as np


class Drawn:
    '''Says the class that it is told, where the draw that comes with it is below the accuracy.'''

    inputs = {"told": ("FP32", [-1, 3])}
    outputs = {"scores": ("FP32", [-1, 2])}
    accuracy, falls, service_s = 0.0, 0.0, 0.0

    def predict(self, inputs):
        time.sleep(self.service_s)
        label, draw, fallen = inputs["told"].T
        right = draw < self.accuracy - self.falls * fallen
        said = np.where(right, label, 1.0 - label)
        return {"scores": np.stack([1.0 - said, said], axis=1).astype(np.float32)}


class A(Drawn):
    accuracy, service_s = 0.82, 0.001


class B(Drawn):
    accuracy, service_s = 0.93, 0.004


class C(Drawn):
    accuracy, falls, service_s = 0.95, FALL, 0.003
"""
FILE = """\
tasks:
  drawn:
    accuracy_target: {{mean: {target}, by: {by}}}
    feedback: {{}}
    variants:
      a: {{python: "./drawn.py:A", accuracy: 0.82, service: {{mean: 1 ms}}}}
      b: {{python: "./drawn.py:B", accuracy: 0.93, service: {{mean: 4 ms}}}}
      c: {{python: "./drawn.py:C", accuracy: 0.95, service: {{mean: 3 ms}}}}
nodes: {{here: {{instances: {{drawn/a: 1, drawn/b: 2, drawn/c: 2}}, buffer: 64}}}}
dispatch: {{policy: priced}}
"""


def draws(seed: int) -> Iterator[tuple[int, float, bool]]:
    """Yield of each request its class, its draw, and whether its answer will be labeled.

    Draws of labels are stratified: of each hundred, one is in each hundredth. So the mean of 2,000
    of them is what was right, and not by chance on one side of a limit.
    """
    random = np.random.default_rng(seed)
    strata: list[float] = []
    while True:
        labeled = random.random() < LABELED
        if labeled and not strata:
            strata = ((random.permutation(100) + 0.5) / 100).tolist()
        draw = strata.pop() if labeled else float(random.random())
        yield int(random.integers(2)), draw, bool(labeled)


def request(path: str, body: Any, key: str, name: str = "") -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST /v2/models/drawn/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    shown = f"X-Request-Id: {name}\r\n" if name else ""
    return f"{head}{shown}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


@pytest.mark.slow
@pytest.mark.parametrize("by", ["measured", "profile"])
def test_after_a_fall_the_mean_of_labels_comes_back_by_what_is_measured_alone(
    start: Callable[..., Any], tmp_path: Path, by: str
) -> None:
    """Half of the answers are labeled, not 5 %, so that the labels come in fewer requests."""
    (tmp_path / "drawn.py").write_text(CODE.replace("FALL", str(FALL)))
    file = tmp_path / "drawn.yaml"
    file.write_text(FILE.format(by=by, target=TARGET))
    options = {"keys": Keys(KEYS), "answers": tmp_path / "answers"}
    running = start(deployment=inferway.load(file), **options)
    asking, saying = [running.wire() for _ in range(WIRES)], running.wire()
    scores: list[float] = []
    feedback: list[dict[str, Any]] = []
    answered: list[str] = []
    drawn = enumerate(draws(seed=1))
    while len(scores) < BEFORE + AFTER:
        sent = [next(drawn) for _ in asking]
        fallen = float(len(scores) >= BEFORE)
        for wire, (number, (label, draw, _)) in zip(asking, sent, strict=True):
            told = {"name": "told", "datatype": "FP32", "shape": [1, 3]}
            told["data"] = [label, draw, fallen]
            wire.send(request("infer", {"inputs": [told]}, ASKS, f"r-{number}"))
        for wire, (number, (label, _, labeled)) in zip(asking, sent, strict=True):
            answer = wire.read()
            assert answer.status == 200, answer.body
            if not labeled:
                continue
            (said,) = answer.json["outputs"]
            scores.append(float(int(said["data"][1] > said["data"][0]) == label))
            answered.append(answer.json["model_version"])
            feedback.append({"id": f"r-{number}", "label": label})
        if len(feedback) >= TOGETHER:
            saying.send(request("feedback", feedback, SAYS))
            joined = {"matched": len(feedback), "unknown": [], "doubled": []}
            assert saying.read().json == joined
            feedback.clear()
    before, last = np.array(scores[:BEFORE]), np.array(scores[-LAST:])
    half_width = 1.96 * last.std(ddof=1) / math.sqrt(LAST)
    shares = {name: answered[-LAST:].count(name) / LAST for name in "abc"}
    print(by, before.mean(), last.mean(), half_width, shares)
    assert before.mean() == pytest.approx(TARGET, abs=0.03)
    assert (last.mean() >= TARGET - half_width) == (by == "measured"), (last.mean(), shares)
