"""A server of models whose accuracies nobody knows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.catalog import resolve
from inferway.catalog import testset as load_testset

FILE = """
tasks:
  digits:
    variants:
      quick: {{model: '{quick}', service: {{mean: 1 ms}}}}
      exact: {{model: '{exact}', service: {{mean: 5 s}}}}
nodes: {{here: {{instances: {{digits/quick: 1, digits/exact: 1}}, buffer: 8}}}}
"""


def strict(body: bytes) -> Any:
    """Read JSON, which has no NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(body, parse_constant=refuse)


@pytest.fixture
def serving(start: Any, tmp_path: Path) -> Iterator[Any]:
    file = tmp_path / "digits.yaml"
    quick, exact = (resolve(f"zoo://digits/{name}")[0] for name in ("tiny", "large"))
    file.write_text(FILE.format(quick=quick, exact=exact))
    return start(deployment=inferway.load(file), record=tmp_path / "run")


def images(rows: int, **parameters: Any) -> dict[str, Any]:
    data = load_testset().images[:rows]
    tensor = {"name": "image", "datatype": "FP32", "shape": list(data.shape), "data": data.tolist()}
    return {"inputs": [tensor], "parameters": parameters} if parameters else {"inputs": [tensor]}


def test_they_are_served_and_nothing_says_a_number_that_is_none(serving: Any) -> None:
    answers = [serving.infer(images(rows)) for rows in (1, 2, 3)]
    pinned = serving.infer(images(1), path="/v2/models/digits/versions/exact/infer")
    assert [one.status for one in (*answers, pinned)] == [200] * 4
    for answer in answers:
        # Nothing is busy: the one that is predicted to answer first is the quick one.
        told = strict(answer.body)
        assert told["model_version"] == "quick"
        assert "accuracy_balance" not in told["parameters"]
    status = strict(serving.get("/status", admin=True).body)["tasks"]["digits"]
    nothing = ("accuracy_target", "accuracy_mean", "accuracy_balance", "promise")
    assert [status[name] for name in nothing] == [None] * 4
    assert [status["variants"][name]["accuracy"] for name in ("quick", "exact")] == [None, None]
    assert status["variants"]["quick"]["answers"] == 6
    page = serving.get("/", admin=True).body.decode()
    assert "nan" not in page.lower()
    lines = serving.get("/metrics", admin=True).body.decode().splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    assert not [line for line in samples if line.startswith("inferway_accuracy")]
    assert not [line for line in samples if line.lower().endswith("nan")]


def test_no_floor_is_promised(serving: Any) -> None:
    answer = serving.infer(images(1, accuracy=0.5))
    assert answer.status == 400
    assert answer.json["error"] == (
        "no variant of task 'digits' has a known accuracy, so that none can be held to 0.5; "
        "leave `accuracy` out"
    )
    assert serving.infer(images(1, accuracy=0)).status == 200


def test_a_decision_is_explained_without_them(serving: Any) -> None:
    answer = serving.infer(images(1), "X-Request-Id: one\r\n")
    assert answer.status == 200
    told = strict(serving.get("/v2/models/digits/explain/one").body)
    assert (told["balance_before"], told["balance_after"]) == (None, None)
    assert [one["accuracy"] for one in told["candidates"]] == [None, None]
    assert [one["allowed"] for one in told["candidates"]] == [True, True]
    assert told["reason"].startswith("the policy chose quick of 2 variants")


def test_the_twin_decides_alike(serving: Any, tmp_path: Path) -> None:
    wires = [serving.wire() for _ in range(6)]
    path = "/v2/models/digits/versions/exact/infer"
    bodies = {rows: json.dumps(images(rows)).encode() for rows in range(1, 9)}
    for rows in np.random.default_rng(1).integers(1, 9, 40).tolist():
        for wire in wires[:-1]:
            wire.send(serving.post(bodies[rows]))
        # What it takes is learned from those that are pinned to it; then others may go there.
        wires[-1].send(serving.post(bodies[rows], path=path))
        assert {wire.read().status for wire in wires} <= {200, 429}
    serving.wait(serving.server.stop())
    folder = tmp_path / "run" / "digits"
    assert strict((folder / "recording.json").read_bytes())["fleet"]["accuracy"] == [None, None]
    found = inferway.replay(folder, requests=None)
    assert found.requests >= 240
    assert found.differences == ()
    again = inferway.simulate(serving.deployment, trace=folder)
    told = strict(json.dumps(again.to_json()).encode())["tasks"]["digits"]["trace"]
    assert [told[side]["accuracy"] for side in ("live", "twin")] == [None, None]
    assert "nan" not in str(again)
