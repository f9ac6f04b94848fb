"""A share of the answers is compared with the most accurate variant's, live."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import inferway
from inferway.catalog import testset as load_testset
from inferway.live import Keys

FILE = """
tasks:
  digits:
    feedback: {}
    shadow: {share: 100 %, against: most-accurate}
    variants:
      tiny: {model: zoo://digits/tiny}
      large: {model: zoo://digits/large}
nodes:
  here: {instances: {digits/tiny: 1, digits/large: 1}, buffer: 64}
dispatch: {policy: fastest-only}
"""
SAYS, ASKS = "a-key-of-feedback", "a-key-of-all-else"
KEYS = [f"feedback={SAYS}", f"infer+read+admin={ASKS}"]
COUNT = 40


def send(
    running: Any, method: str, path: str, body: Any = None, key: str = ASKS, *, admin: bool = False
) -> Any:
    raw = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    head += "Accept: text/html\r\n" if path == "/" else ""
    return running.ask(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw, admin=admin)


def infer(running: Any, number: int, variant: str = "tiny") -> int:
    image = load_testset().images[number : number + 1]
    tensor = {"name": "image", "datatype": "FP32", "shape": list(image.shape)}
    raw = json.dumps({"inputs": [tensor | {"data": image.ravel().tolist()}]}).encode()
    head = f"POST /v2/models/digits/versions/{variant}/infer HTTP/1.1\r\nHost: x\r\n"
    head += f"Authorization: Bearer {ASKS}\r\nX-Request-Id: {variant}-{number}\r\n"
    answer = running.ask(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
    assert answer.json["model_version"] == variant
    scores = next(one["data"] for one in answer.json["outputs"] if one["datatype"] == "FP32")
    return max(range(len(scores)), key=scores.__getitem__)


def accuracy(running: Any) -> Any:
    return send(running, "GET", "/v2/models/digits/accuracy").json["variants"]


def metrics(running: Any) -> dict[tuple[str, ...], float]:
    text = send(running, "GET", "/metrics", admin=True).body.decode()
    return {
        (one.name.removeprefix("inferway_"), *sorted(one.labels.values())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_answers_are_compared_and_joined_with_labels(
    start: Callable[..., Any], tmp_path: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(FILE)
    options = {"keys": Keys(KEYS), "answers": tmp_path / "answers"}
    running = start(deployment=inferway.load(file), **options)

    def shadows() -> Any:
        feedback = send(running, "GET", "/status", admin=True).json["tasks"]["digits"]["feedback"]
        return feedback["shadow"]

    def settled(number: int) -> bool:
        send(running, "POST", "/v2/models/digits/feedback", [], SAYS)  # what waits is written
        return bool(accuracy(running)["tiny"]["compared"] + sum(shadows().values()) > number)

    same = 0
    for number in range(COUNT):
        said = infer(running, number)
        # The next one may come while the shadow of this one runs; then that gives way.
        until(partial(settled, number))
        same += said == infer(running, number, "large")
    told = accuracy(running)
    assert shadows() == {"busy": 0, "gave_way": 0, "failed": 0}
    assert (told["tiny"]["compared"], told["tiny"]["agreed"]) == (COUNT, same)
    assert told["tiny"]["agreement"] == pytest.approx(same / COUNT)
    assert (told["tiny"]["joint"], told["large"]["compared"]) == (None, 0)
    feedback = [{"id": f"tiny-{n}", "correct": n % 4 > 0} for n in range(COUNT // 2)]
    joined = send(running, "POST", "/v2/models/digits/feedback", feedback, SAYS).json
    assert joined["matched"] == COUNT // 2
    told = accuracy(running)["tiny"]
    assert told["mean"] == 0.75
    assert 0.0 <= told["joint_low"] < told["joint"] < told["joint_high"] <= 1.0
    values = metrics(running)
    assert values["shadow_runs_total", "digits", "tiny"] == COUNT
    assert values["shadow_agreed_total", "digits", "tiny"] == same
    assert values["shadow_skipped_total", "busy", "digits"] == 0
    assert values["shadow_agreement_ratio", "digits", "tiny"] == told["agreement"]
    assert values["feedback_joint_ratio", "digits", "tiny"] == told["joint"]
    assert values["feedback_joint_low_ratio", "digits", "tiny"] == told["joint_low"]
    # No shadow is an answer.
    assert values["answers_total", "digits", "large"] == COUNT
    page = send(running, "GET", "/", admin=True).body.decode()
    assert f"<td>{COUNT}</td>" in page[page.index("<caption>Accuracy</caption>") :]
    # A file that is read anew changes nothing in it, nor does a restart; without the key it ends.
    running.wait(running.server.apply(inferway.load(file)))
    assert accuracy(running)["tiny"] == told
    running.wait(running.server.stop())
    file.write_text(FILE.replace("    shadow: {share: 100 %, against: most-accurate}\n", ""))
    running = start(deployment=inferway.load(file), **options)
    until(lambda: accuracy(running).get("tiny") == told)
    infer(running, COUNT)
    feedback = [{"id": f"tiny-{COUNT}", "correct": True}, {"id": "tiny-30", "correct": True}]
    joined = send(running, "POST", "/v2/models/digits/feedback", feedback, SAYS).json
    assert joined["matched"] == 2
    now = accuracy(running)["tiny"]
    assert (now["labels"], now["compared"]) == (COUNT // 2 + 2, COUNT)
    assert not any(name[0].startswith("shadow_") for name in metrics(running))
