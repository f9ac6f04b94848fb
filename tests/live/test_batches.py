"""Batches on real models: what is answered, measured, shown, explained and replayed."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.catalog import testset as load_testset
from inferway.dispatch import recordings
from inferway.live import Headroom, MemoryNeed, Outcome
from inferway.protocol import Signature, Tensor

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
    site = running.site
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
    site = running.site
    view = site.pool.dispatcher.site
    large = site.pool.first[site.pool.variants.index("large")]
    assert view.measured[large].tolist() == [0, 0, 4, 0, 0, 0, 0, 0]
    # The file says 2 s for three; single requests have not been measured.
    assert view.row_s[large, 2] < 0.1
    assert view.row_s[large, 0] == pytest.approx(1.0)
    running.wait(running.server.stop())
    again = serve(large=SLOW, times=tmp_path / "times.json")
    site = again.site
    assert site.pool.dispatcher.site.row_s[large, 2] == pytest.approx(view.row_s[large, 2])


def test_a_server_that_ends_leaves_nobody_waiting_for_a_batch(
    serve: Callable[..., Any], until: Any
) -> None:
    running = serve(large=SLOW)
    wires = [running.wire() for _ in range(2)]
    for wire, raw in zip(wires, asks(running.post, 2), strict=True):
        wire.send(raw)
    site = running.site
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
    site = running.site
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
    site = running.site
    # Some runs were of several requests.
    assert (
        "alias" in policy or sum(sum(site.stats.batches(k)) for k in site.pool.classes) < answered
    )
    running.wait(running.server.stop())
    (folder,) = recordings(tmp_path / "run")
    found = inferway.replay(folder, requests=None)
    assert found.differences == ()
    assert found.requests >= answered
    assert (found.batches > 0) is ("alias" in policy)


class Runs:
    """A runtime that answers each row's sum, and notes the rows of its runs."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.rows: list[int] = []
        self.between: Callable[[int], None] = lambda run: None
        """Called before each run with its number."""
        self.width: Callable[[int], int] = lambda run: 3
        """Of the answers of a run."""

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        image = inputs["image"]
        number = len(self.rows)
        self.rows.append(len(image))
        self.between(number)
        return {"scores": image.sum(axis=1, keepdims=True).repeat(self.width(number), axis=1)}

    def close(self) -> None:
        pass


TAKES = (Tensor("image", "FP32", (-1, 4)),)
FIXED = Signature(TAKES, (Tensor("scores", "FP32", (-1, 3)),))
OPEN = Signature(TAKES, (Tensor("scores", "FP32", (-1, -1)),))


def many(rows: int, **parameters: Any) -> dict[str, Any]:
    data = np.arange(rows * 4, dtype=float).tolist()
    tensor = {"name": "image", "datatype": "FP32", "shape": [rows, 4], "data": data}
    return {"inputs": [tensor]} | ({"parameters": parameters} if parameters else {})


def pair(signature: Signature) -> tuple[Runs, Runs]:
    return Runs(signature), Runs(signature)


def test_rows_beyond_the_largest_run_are_further_runs_in_order(
    start: Callable[..., Any], site_of: Callable[..., Any], until: Any, tmp_path: Path
) -> None:
    runtimes = pair(FIXED)
    site = site_of(runtimes)
    running = start(site, record=None)
    running.call(lambda: site.pool.record(tmp_path / "run"))
    for runtime in runtimes:
        runtime.rows.clear()
    answer = running.infer(many(150), "X-Request-Id: wide\r\n")
    assert scores(answer)[:, 0] == pytest.approx(np.arange(600.0).reshape(150, 4).sum(axis=1))
    used = runtimes[0] if runtimes[0].rows else runtimes[1]
    assert used.rows == [64, 64, 22]
    # One request, 150 answers, three runs.
    until(lambda: running.call(lambda: site.stats.total_rows) == 150)
    assert sum(site.stats.outcomes[0]) == 1
    assert sum(sum(site.stats.batches(k)) for k in site.pool.classes) == 3
    assert answer.json["parameters"]["accuracy_balance"] == pytest.approx(150 * (0.7 - 0.8))
    told = running.get("/v2/models/digits/explain/wide").json
    assert told["rows"] == 150
    assert told["batch"] == {"requests": 1, "rows": 150, "runs": 3}
    # Predicted as so many rows, and learned of as one of its runs.
    assert told["predicted_latency_ms"] == pytest.approx(150.0)
    running.wait(running.server.stop())
    found = inferway.replay(tmp_path / "run", requests=None)
    assert (found.differences, found.requests) == ((), 1)


def test_the_largest_size_of_a_variant_is_its_largest_run(
    serve: Callable[..., Any], until: Any
) -> None:
    running = serve(large="{sizes: [1, 3, 5], service: [1 s, 2 s, 3 s]}")
    site = running.site
    (raw,) = asks(running.post, 1, rows=12)
    wire = running.wire()
    wire.send(raw)
    answer = wire.read()
    assert len(scores(answer)) == 12
    # 5 + 5 + 2: the file's three seconds twice, and for two rows a time between one's and three's.
    predicted = running.get("/v2/models/digits/explain/r0").json["predicted_latency_ms"]
    assert predicted == pytest.approx(7500.0)
    large = site.pool.variants.index("large")
    until(lambda: running.call(lambda: site.stats.rows[large]) == 12)
    assert sum(site.stats.batches(large)) == 3
    assert site.stats.batch_rows(large) == 12
    view = site.pool.dispatcher.site
    server = site.pool.first[large]
    assert view.measured[server].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert view.row_s[server, 3] < 0.3


def test_a_failed_run_fails_the_request_and_moves_nothing(
    start: Callable[..., Any], site_of: Callable[..., Any]
) -> None:
    runtimes = pair(FIXED)
    site = site_of(runtimes)
    running = start(site)

    def fail(run: int) -> None:
        if len(runtimes[0].rows) == 2:
            raise RuntimeError("no second run")

    runtimes[0].rows.clear()
    runtimes[0].between = fail
    answer = running.infer(many(150))
    assert answer.status == 500
    assert "no second run" in answer.json["error"]
    assert runtimes[0].rows == [64, 64]
    assert site.pool.dispatcher.balance == 0.0
    assert site.stats.total_rows == 0
    assert running.infer(many(150)).status == 200


def test_runs_whose_answers_do_not_fit_together_are_one_clear_failure(
    start: Callable[..., Any], site_of: Callable[..., Any]
) -> None:
    runtimes = pair(OPEN)
    running = start(site_of(runtimes, signature=OPEN))
    runtimes[0].width = lambda run: 1 + run
    answer = running.infer(many(100))
    assert answer.status == 500
    assert "rows of shape" in answer.json["error"]
    assert "ask for at most 64 rows at once" in answer.json["error"]


def test_a_client_that_goes_and_a_deadline_that_passes_end_a_request_between_two_runs(
    start: Callable[..., Any], site_of: Callable[..., Any], until: Any
) -> None:
    runtimes = pair(FIXED)
    site = site_of(runtimes)
    running = start(site)
    first, entered, go_on = runtimes[0], threading.Semaphore(0), threading.Semaphore(0)
    first.rows.clear()

    def hold(run: int) -> None:
        entered.release()
        assert go_on.acquire(timeout=20)

    first.between = hold
    wire = running.wire()
    wire.send(running.post(many(150)))
    assert entered.acquire(timeout=20)
    wire.close()
    until(lambda: running.call(lambda: site.pool.queues[0][0].abandoned))
    go_on.release()
    until(lambda: running.call(lambda: site.stats.total(Outcome.CANCELED)) == 1)
    assert first.rows == [64]

    first.rows.clear()
    wire = running.wire()
    wire.send(running.post(many(150, deadline_ms=400)))
    assert entered.acquire(timeout=20)
    begun_s = site.now()
    until(lambda: site.now() > begun_s + 0.4)
    go_on.release()
    late = wire.read()
    assert late.status == 504
    assert "1 of the request's 3 runs" in late.json["error"]
    assert first.rows == [64]


def test_requests_behind_a_large_one_come_in_their_order_and_know_of_its_runs(
    start: Callable[..., Any], site_of: Callable[..., Any], until: Any
) -> None:
    runtimes = pair(FIXED)
    site = site_of(runtimes)
    running = start(site)
    entered, go_on = threading.Semaphore(0), threading.Event()
    first = runtimes[0]
    first.rows.clear()

    def hold(run: int) -> None:
        entered.release()
        assert go_on.wait(20)

    first.between = hold
    path = "/v2/models/digits/versions/tiny/infer"
    wires = [running.wire() for _ in range(2)]
    wires[0].send(running.post(many(1000), path=path))
    assert entered.acquire(timeout=20)
    wires[1].send(running.post(many(1), "X-Request-Id: behind\r\n", path=path))
    until(lambda: running.call(lambda: site.in_flight) == 2)
    # A second, less what has passed, is predicted for the thousand rows.
    refused = running.infer(many(1, deadline_ms=300), path=path)
    assert refused.status == 429
    go_on.set()
    assert [wire.read().status for wire in wires] == [200, 200]
    assert first.rows == [64] * 15 + [40, 1]
    told = running.get("/v2/models/digits/explain/behind").json
    assert told["predicted_latency_ms"] > 500.0


def test_a_run_that_finds_no_memory_waits_for_another_to_end(
    start: Callable[..., Any], site_of: Callable[..., Any], until: Any
) -> None:
    runtimes = pair(FIXED)
    room = Headroom(100)
    demand = MemoryNeed((0, 60), 0, 1 << 62, "measured")
    site = site_of(runtimes, headroom=room, demands=[demand, demand])
    running = start(site)
    entered, go_on = threading.Semaphore(0), threading.Event()
    for runtime in runtimes:
        runtime.rows.clear()

    def hold(run: int) -> None:
        entered.release()
        assert go_on.wait(20)

    runtimes[0].between = hold
    wires = [running.wire() for _ in range(2)]
    wires[0].send(running.post(many(1), path="/v2/models/digits/versions/tiny/infer"))
    assert entered.acquire(timeout=20)
    wires[1].send(running.post(many(1), path="/v2/models/digits/versions/big/infer"))
    until(lambda: room.waiting == 1)
    assert runtimes[1].rows == []
    text = running.get("/metrics", admin=True).body.decode()
    assert "inferway_run_memory_bytes 60.0" in text
    assert "inferway_run_memory_waiting_requests 1.0" in text
    go_on.set()
    assert [wire.read().status for wire in wires] == [200, 200]
    until(lambda: room.held_bytes == 0)


def test_an_answer_that_turns_out_too_large_is_refused_after_its_first_run(
    start: Callable[..., Any], site_of: Callable[..., Any]
) -> None:
    runtimes = pair(OPEN)
    running = start(site_of(runtimes, signature=OPEN, headroom=Headroom(64 * 1024)))
    for runtime in runtimes:
        runtime.rows.clear()
        runtime.width = lambda run: 64  # 256 bytes for each row
    answer = running.infer(many(150))
    assert answer.status == 413
    assert answer.json["error"].startswith("the request has 150 rows, and the limit")
    assert answer.json["error"].endswith("leaves room for 64")
    assert runtimes[0].rows == [64]
    assert running.infer(many(64)).status == 200


def test_a_server_that_ends_begins_no_further_run(
    start: Callable[..., Any], site_of: Callable[..., Any], until: Any
) -> None:
    runtimes = pair(FIXED)
    site = site_of(runtimes)
    running = start(site)
    entered, go_on = threading.Semaphore(0), threading.Event()
    first = runtimes[0]
    first.rows.clear()

    def hold(run: int) -> None:
        entered.release()
        assert go_on.wait(20)

    first.between = hold
    wire = running.wire()
    wire.send(running.post(many(150)))
    assert entered.acquire(timeout=20)
    running.wait(running.server.stop(grace_s=0.1))
    go_on.set()
    for instance in site.pool.instances:
        instance._thread.join(20.0)
        assert not instance._thread.is_alive()
    assert first.rows == [64]
