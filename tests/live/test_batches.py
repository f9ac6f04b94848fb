"""Batches on real models: what is answered, measured, shown, explained and replayed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.catalog import testset as load_testset
from inferway.dispatch.replay import recordings, replay

FILE = """
tasks:
  digits:
    variants:
      tiny: {{model: zoo://digits/tiny, batch: {tiny}}}
      large: {{model: zoo://digits/large, batch: {large}}}
nodes:
  here: {{instances: {{digits/tiny: 1, digits/large: 1}}, buffer: 15}}
dispatch: {policy}
"""
BATCH = "{sizes: [1, 3, 5], service: [1 ms, 2 ms, 3 ms]}"
SLOW = "{sizes: [1, 3, 5], service: [1 s, 2 s, 3 s], min: 3}"


@pytest.fixture
def serve(start: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    def begin(
        policy: str = "{policy: most-accurate-only}",
        tiny: str = BATCH,
        large: str = BATCH,
        **options: Any,
    ) -> Any:
        file = tmp_path / "digits.yaml"
        file.write_text(FILE.format(policy=policy, tiny=tiny, large=large))
        return start(deployment=inferway.load(file), **options)

    return begin


def asks(post: Callable[..., bytes], count: int, rows: int = 1) -> list[bytes]:
    """Binary requests, named by their number."""
    images = load_testset().images
    made = []
    for i in range(count):
        data = images[i : i + rows]
        tensor = {
            "name": "image",
            "datatype": "FP32",
            "shape": list(data.shape),
            "parameters": {"binary_data_size": data.nbytes},
        }
        text = json.dumps({"inputs": [tensor]}).encode()
        head = f"Inference-Header-Content-Length: {len(text)}\r\nX-Request-Id: r{i}\r\n"
        made.append(post(text + data.tobytes(), head))
    return made


def scores(answer: Any) -> Any:
    assert answer.status == 200, answer.body
    (output,) = answer.json["outputs"]
    return np.array(output["data"]).reshape(output["shape"])


def test_answers_of_a_batch_are_those_of_single_requests(serve: Callable[..., Any]) -> None:
    running = serve(large=SLOW)
    wires = [running.wire() for _ in range(3)]
    requests = asks(running.post, 3)
    for wire, raw in zip(wires, requests, strict=True):
        wire.send(raw)
    together = [scores(wire.read()) for wire in wires]
    (site,) = running.server.sites
    running.call(site.flush)  # nobody waits for others now
    for wire, raw, found in zip(wires, requests, together, strict=True):
        wire.send(raw)
        assert scores(wire.read()) == pytest.approx(found, rel=1e-4, abs=1e-5)
    told = running.get("/v2/models/digits/explain/r1").json
    assert told["batch"] == {"requests": 1, "rows": 1}
    text = running.get("/metrics", admin=True).body.decode()
    line = re.search(r'inferway_batch_size_bucket\{le="2",.*variant="large"\} (\S+)', text)
    assert line is not None
    assert float(line[1]) == 3
    assert re.search(r'inferway_batch_size_count\{.*variant="large"\} 4', text)
    assert re.search(r'inferway_batch_size_sum\{.*variant="large"\} 6', text)


def test_an_explanation_names_the_batch_and_its_time_is_measured(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    running = serve(large=SLOW, times=tmp_path / "times.json")
    for _ in range(4):
        wires = [running.wire() for _ in range(3)]
        for wire, raw in zip(wires, asks(running.post, 3), strict=True):
            wire.send(raw)
        assert [wire.read().status for wire in wires] == [200] * 3
    told = running.get("/v2/models/digits/explain/r0").json
    assert told["batch"] == {"requests": 3, "rows": 3}
    (site,) = running.server.sites
    view = site.dispatcher.site
    large = site.first[site.variants.index("large")]
    assert view.measured[large].tolist() == [0, 0, 4, 0, 0, 0, 0, 0]
    # The file says 2 s for three; single requests have not been measured.
    assert view.row_s[large, 2] < 0.1
    assert view.row_s[large, 0] == pytest.approx(1.0)
    running.wait(running.server.stop())
    again = serve(large=SLOW, times=tmp_path / "times.json")
    (site,) = again.server.sites
    assert site.dispatcher.site.row_s[large, 2] == pytest.approx(view.row_s[large, 2])


def test_a_server_that_ends_leaves_nobody_waiting_for_a_batch(
    serve: Callable[..., Any], until: Any
) -> None:
    running = serve(large=SLOW)
    wires = [running.wire() for _ in range(2)]
    for wire, raw in zip(wires, asks(running.post, 2), strict=True):
        wire.send(raw)
    (site,) = running.server.sites
    until(lambda: running.call(lambda: site.in_flight) == 2)
    stopping = running.begin(running.server.stop(grace_s=10.0))
    assert [wire.read().status for wire in wires] == [200] * 2
    stopping.result(20)


def test_who_waits_for_a_batch_when_another_file_is_applied_is_answered(
    serve: Callable[..., Any], until: Any
) -> None:
    running = serve(large=SLOW)
    wire = running.wire()
    wire.send(asks(running.post, 1)[0])
    (site,) = running.server.sites
    until(lambda: running.call(lambda: site.in_flight) == 1)
    running.deployment.path.write_text(
        FILE.format(policy="{policy: fastest-only}", tiny=BATCH, large=BATCH)
    )
    running.wait(running.server.apply(inferway.load(running.deployment.path)))
    assert wire.read().status == 200


@pytest.mark.parametrize(
    "policy", ["{policy: alias, probabilities: {tiny: 0.5, large: 0.5}}", "{policy: jiq-accurate}"]
)
def test_a_replay_of_batches_finds_no_difference(
    serve: Callable[..., Any], tmp_path: Path, policy: str
) -> None:
    running = serve(policy, large=BATCH, record=tmp_path / "run")
    wires = [running.wire() for _ in range(8)]
    choose = random.Random(3)
    raws = asks(running.post, 60) + asks(running.post, 20, rows=2)
    answered = 0
    for _ in range(20):
        parts = [choose.choices(raws, k=6) for _ in wires]
        for wire, part in zip(wires, parts, strict=True):
            wire.send(b"".join(part))
        for wire, part in zip(wires, parts, strict=True):
            answered += sum(wire.read().status == 200 for _ in part)
    assert answered > 200
    (site,) = running.server.sites
    # Some runs were of several requests.
    assert "alias" in policy or sum(map(sum, site.counters.batches)) < answered
    running.wait(running.server.stop())
    (folder,) = recordings(tmp_path / "run")
    found = replay(folder, requests=None)
    assert found.differences == ()
    assert found.requests >= answered
    assert (found.batches > 0) is ("alias" in policy)
