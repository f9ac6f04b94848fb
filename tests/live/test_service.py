"""Requests on their way through a site: refusals, failures, departures, warm-up, the end."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inferway.live import Outcome, PortError, ServeError, TaskSite, WarmUpError
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime

ONE = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]
}
TINY = "/v2/models/digits/versions/tiny/infer"


@pytest.fixture
def gated(start: Any, site_of: Any, gates: Any) -> Any:
    """A warm server whose models wait for their gates; two places per server."""
    for gate in gates:
        gate.opened.set()
    running = start(site_of(gates, buffer=2))
    for gate in gates:
        gate.opened.clear()
        while gate.entered.acquire(blocking=False):
            pass  # the warm-up
    return running


def metric(running: Any, name: str, **labels: str) -> float | None:
    """The value of a metric, from the admin listener."""
    text = running.get("/metrics", admin=True).body.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    return None


def test_a_full_site_rejects_with_429(gated: Any, gates: Any, until: Any) -> None:
    site = gated.site
    waiting = [gated.wire() for _ in range(2)]
    for wire in waiting:
        wire.send(gated.post(ONE, path=TINY))
    until(lambda: site.in_flight == 2)
    refused = gated.infer(ONE, path=TINY)
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert "no room" in refused.json["error"]
    assert metric(gated, "inferway_queue_length", variant="tiny") == 2
    gates[0].opened.set()
    for wire in waiting:
        assert wire.read().status == 200
        wire.close()
    assert gated.infer(ONE, path=TINY).status == 200
    assert metric(gated, "inferway_requests_total", outcome="rejected") == 1
    assert metric(gated, "inferway_requests_total", outcome="answered", variant="tiny") == 3


def test_a_failing_model_gives_500_and_undoes_the_balance(gated: Any, gates: Any) -> None:
    gates[0].failure = RuntimeError("the model\nis broken")
    gates[0].opened.set()
    failed = gated.infer(ONE)
    assert (failed.status, failed.json) == (
        500,
        {"error": "digits/tiny#0 failed: the model is broken"},
    )
    assert gated.call(lambda: gated.site.pool.dispatcher.balance) == pytest.approx(0.0)
    gates[0].failure = None
    assert gated.infer(ONE).status == 200
    assert metric(gated, "inferway_requests_total", outcome="failed", variant="tiny") == 1


def test_a_client_that_goes_frees_its_place(gated: Any, gates: Any, until: Any) -> None:
    site = gated.site
    first, second = gated.wire(), gated.wire()
    first.send(gated.post(ONE))
    assert gates[0].entered.acquire(timeout=10)
    until(lambda: site.in_flight == 1)
    second.send(gated.post(ONE))
    until(lambda: site.in_flight == 2)
    second.close()
    until(lambda: site.in_flight == 1)
    runs = gates[0].runs
    gates[0].opened.set()
    assert first.read().json["parameters"]["accuracy_balance"] == pytest.approx(0.7 - 0.8)
    first.close()
    assert gated.infer(ONE).status == 200
    assert gates[0].runs == runs + 1
    assert metric(gated, "inferway_requests_total", outcome="canceled") == 1


def test_a_deadline_that_passes_in_the_queue_gives_504(
    start: Any, site_of: Any, gates: Any, until: Any, patient: Any
) -> None:
    for gate in gates:
        gate.opened.set()
    site = site_of(gates, now=patient.time)
    running = start(site, loop=patient)
    gates[0].opened.clear()
    with closing(running.wire()) as first, closing(running.wire()) as late:
        first.send(running.post(ONE, path=TINY))
        until(lambda: site.in_flight == 1)
        late.send(running.post(ONE | {"parameters": {"deadline_ms": 100_000}}, path=TINY))
        until(lambda: site.in_flight == 2)
        patient.advance(99.0)
        running.call(lambda: None)
        assert site.in_flight == 2
        patient.advance(1.5)
        # At once, though the model before it still runs.
        answer = late.read()
        assert answer.status == 504
        assert "deadline" in answer.json["error"]
        assert site.in_flight == 1
        gates[0].opened.set()
        assert first.read().status == 200
        assert metric(running, "inferway_requests_total", outcome="expired", variant="tiny") == 1


def test_what_is_served_late_says_so(
    start: Any, site_of: Any, gates: Any, until: Any, patient: Any
) -> None:
    for gate in gates:
        gate.opened.set()
    running = start(site_of(gates, buffer=2, drop_late=False, now=patient.time), loop=patient)
    gates[0].opened.clear()
    site = running.site
    wires = [running.wire(), running.wire()]
    for wire in wires:
        wire.send(running.post(ONE | {"parameters": {"deadline_ms": 100_000}}, path=TINY))
    until(lambda: site.in_flight == 2)
    patient.advance(100.5)
    running.call(lambda: None)
    gates[0].opened.set()
    for wire in wires:
        answer = wire.read()
        assert (answer.status, answer.json["parameters"]["late"]) == (200, True)
        assert answer.json["parameters"]["latency_ms"] == pytest.approx(100_500)
    assert "late" not in running.infer(ONE, path=TINY).json["parameters"]
    assert metric(running, "inferway_late_answers_total", variant="tiny") == 2


def test_a_request_that_cannot_be_in_time_is_refused_at_once(digits: Any) -> None:
    refused = digits.infer(ONE | {"parameters": {"deadline_ms": 0.01}})
    assert refused.status == 429
    assert refused.headers["retry-after"] == "1"
    assert "no answer is predicted before 1 ms" in refused.json["error"]


def test_retry_after_is_when_an_answer_in_time_is_predicted(
    start: Any, site_of: Any, gates: Any, until: Any, patient: Any
) -> None:
    for gate in gates:
        gate.opened.set()
    site = site_of(gates, buffer=2, now=patient.time)
    gated = start(site, loop=patient)
    gates[0].opened.clear()
    rows = 4000
    many = ONE["inputs"][0] | {"shape": [rows, 4], "data": [0.5] * 4 * rows}
    with closing(gated.wire()) as wire:
        wire.send(gated.post({"inputs": [many]}, path=TINY))
        until(lambda: site.in_flight == 1)
        refused = gated.infer(ONE | {"parameters": {"timeout": 500_000}}, path=TINY)
        assert refused.status == 429
        # 4000 rows at a millisecond each stand before it, and half a second is what it has.
        assert refused.headers["retry-after"] == "4"
        assert "before 4e+03 ms" in refused.json["error"]
        patient.advance(2.2)
        gated.call(lambda: None)
        refused = gated.infer(ONE | {"parameters": {"timeout": 500_000}}, path=TINY)
        assert refused.headers["retry-after"] == "2"
        gates[0].opened.set()
        assert wire.read().status == 200


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"deadline_ms": -1}, "deadline_ms is -1"),
        ({"deadline_ms": "soon"}, "Expected `float"),
        ({"timeout": -1}, "Expected `int` >= 0"),
        ({"timeout": 0.5}, "Expected `int"),
        ({"accuracy": 1.5}, "accuracy is 1.5, expected 0 to 1"),
        ({"priority": -1}, "Expected `int` >= 0"),
        ({"priority": 40_000}, "Expected `int` <= 32767"),
    ],
)
def test_scheduling_parameters_are_checked(digits: Any, parameters: Any, sentence: str) -> None:
    refused = digits.infer(ONE | {"parameters": parameters})
    assert refused.status == 400
    assert sentence in refused.json["error"]


@pytest.mark.parametrize(
    ("parameters", "tensor", "near"),
    [
        ({"acuracy": 0.9}, {}, "unknown parameter 'acuracy'; did you mean 'accuracy'?"),
        ({"deadline_sm": 5}, {}, "did you mean 'deadline_ms'?"),
        ({"prio": 1, "timeouts": 5}, {}, "did you mean 'timeout'?"),
        ({}, {"binray_data": True}, "did you mean 'binary_data'?"),
    ],
)
def test_a_slip_in_a_parameters_name_is_refused(
    digits: Any, parameters: Any, tensor: Any, near: str
) -> None:
    outputs = [{"name": "scores", "parameters": tensor}]
    refused = digits.infer(ONE | {"parameters": parameters, "outputs": outputs})
    assert refused.status == 400
    assert near in refused.json["error"]
    assert metric(digits, "inferway_ignored_parameters_total") == 0


def test_other_servers_parameters_are_ignored_and_counted(digits: Any) -> None:
    others = {"sequence_id": 7, "triton_enable_empty_final_response": True, "temperature": 0.5}
    (image,) = ONE["inputs"]
    codec = image | {"parameters": {"content_type": "np"}}
    outputs = [{"name": "scores", "parameters": {"content_type": "np", "binary_data": False}}]
    asked = {"inputs": [codec], "outputs": outputs, "parameters": others | {"accuracy": 0.9}}
    answer = digits.infer(asked)
    assert answer.status == 200
    assert answer.json["parameters"]["variant"] == "big"
    assert metric(digits, "inferway_ignored_parameters_total") == 5
    assert digits.infer(asked | {"parameters": others | {"accuracy": 2}}).status == 400
    assert digits.infer(asked | {"parameters": [1]}).status == 400
    assert digits.infer(ONE | {"parameters": {"sequence_id": 7}}).status == 200
    assert metric(digits, "inferway_ignored_parameters_total") == 11


def test_the_lowest_priority_gives_way_when_all_is_full(gated: Any, gates: Any, until: Any) -> None:
    site = gated.site

    def send(priority: int | None) -> Any:
        wire = gated.wire()
        parameters = {} if priority is None else {"parameters": {"priority": priority}}
        before = gated.call(lambda: sum(site.stats.total(outcome) for outcome in Outcome))
        count = site.in_flight
        wire.send(gated.post(ONE | parameters, path=TINY))
        until(
            lambda: (
                site.in_flight > count
                or sum(site.stats.total(outcome) for outcome in Outcome) > before
            )
        )
        return wire

    serving = send(None)
    until(lambda: gates[0].entered.acquire(blocking=False))
    unsaid = send(None)
    low = send(7)
    shed = unsaid.read()
    assert shed.status == 429
    assert "higher priority" in shed.json["error"]
    assert int(shed.headers["retry-after"]) >= 1
    same = send(7).read()
    assert (same.status, "no room" in same.json["error"]) == (429, True)
    high = send(1)
    assert low.read().status == 429
    assert send(None).read().status == 429
    gates[0].opened.set()
    assert (serving.read().status, high.read().status) == (200, 200)
    assert gated.call(lambda: site.pool.dispatcher.site.queue.tolist()) == [0, 0]


def test_an_accuracy_floor_is_kept(digits: Any) -> None:
    answer = digits.infer(ONE | {"parameters": {"accuracy": 0.85}})
    assert answer.json["model_version"] == "big"
    refused = digits.infer(ONE | {"parameters": {"accuracy": 0.95}})
    # No time will make it possible: there is nothing to try again for.
    assert (refused.status, refused.json["error"]) == (
        400,
        "accuracy is 0.95; the most accurate variant here has 0.9",
    )
    pinned = digits.infer(ONE | {"parameters": {"accuracy": 0.8}}, path=TINY)
    assert (pinned.status, "has 0.7" in pinned.json["error"]) == (400, True)


def test_ready_only_after_warm_up(start: Any, site_of: Any, gates: Any, until: Any) -> None:
    running = start(site_of(gates), wait=False)
    starting = running.begin(running.server.start())
    until(lambda: gates[0].runs > 0)
    assert running.get("/v2/health/live").status == 200
    assert running.get("/v2/health/ready").status == 503
    assert running.get("/v2/models/digits/ready").status == 503
    refused = running.infer(ONE)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    for gate in gates:
        gate.opened.set()
    starting.result(20)
    assert min(gate.runs for gate in gates) >= 1
    assert running.get("/v2/health/ready").status == 200
    assert running.infer(ONE).status == 200


def test_a_model_that_fails_its_warm_up_ends_the_start(
    start: Any, site_of: Any, gates: Any
) -> None:
    gates[1].failure = RuntimeError("no kernel")
    for gate in gates:
        gate.opened.set()
    running = start(site_of(gates), wait=False)
    with pytest.raises(WarmUpError, match="digits/big#0 failed its warm-up: no kernel"):
        running.wait(running.server.start())


def test_free_axes_may_stay_cold(start: Any, site_of: Any, gates: Any) -> None:
    signature = Signature((Tensor("x", "FP32", (-1, -1)),), (Tensor("y", "FP32", (-1, 1)),))
    for gate in gates:
        gate.signature = signature
        gate.failure = RuntimeError("too short")
        gate.opened.set()
    running = start(site_of(gates, signature=signature))
    assert running.get("/v2/health/ready").status == 200


def test_stopping_finishes_what_is_in_flight(gated: Any, gates: Any, until: Any) -> None:
    with closing(gated.wire()) as busy, closing(gated.wire()) as idle:
        idle.send(b"GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n\r\n")
        assert idle.read().status == 200
        busy.send(gated.post(ONE))
        until(lambda: gated.site.in_flight == 1)
        stopping = gated.begin(gated.server.stop(grace_s=20))
        assert idle.closed()
        assert not stopping.done()
        gates[0].opened.set()
        answer = busy.read()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        stopping.result(20)
    with pytest.raises(ConnectionRefusedError):
        gated.wire()


def test_several_tasks_have_each_their_own_site(start: Any, site_of: Any) -> None:
    other = Signature((Tensor("text", "BYTES", (-1, 1)),), (Tensor("echo", "BYTES", (-1, 1)),))
    running = start(site_of(), site_of(task="words", signature=other))
    words = {"name": "text", "datatype": "BYTES", "shape": [2, 1], "data": ["a, b", "é"]}
    answer = running.infer({"inputs": [words]}, path="/v2/models/words/infer")
    assert answer.json["outputs"][0] == {
        "name": "echo",
        "datatype": "BYTES",
        "shape": [2, 1],
        "data": ["", ""],
    }
    assert running.infer(ONE).json["parameters"]["accuracy_balance"] == pytest.approx(-0.1)
    assert metric(running, "inferway_answers_total", task="words", variant="tiny") == 2
    assert metric(running, "inferway_answers_total", task="digits", variant="tiny") == 1


def test_metrics_and_status(start: Any, site_of: Any) -> None:
    running = start(site_of())
    for rows in (1, 3):
        tensor = ONE["inputs"][0] | {"shape": [rows, 4], "data": [0.5] * 4 * rows}
        assert running.infer({"inputs": [tensor]}).status == 200
    assert running.infer({}).status == 400
    page = running.get("/metrics", admin=True)
    assert page.headers["content-type"].startswith("text/plain")
    families = list(text_string_to_metric_families(page.body.decode()))
    assert families
    assert all(family.name.startswith("inferway_") for family in families)
    assert metric(running, "inferway_request_duration_seconds_count", variant="tiny") == 2
    assert metric(running, "inferway_answers_total", variant="tiny") == 4
    assert metric(running, "inferway_accuracy_mean_ratio") == pytest.approx(0.7)
    assert metric(running, "inferway_accuracy_target_ratio") == 0.8
    assert metric(running, "inferway_accuracy_balance") == pytest.approx(4 * (0.7 - 0.8))
    assert metric(running, "inferway_requests_total", outcome="invalid") == 1
    status = running.get("/status", admin=True).json
    assert status["ready"] is True
    assert status["tasks"]["digits"]["variants"]["tiny"]["answers"] == 4
    assert running.get("/v2", admin=True).status == 404


def test_runtimes_match_the_servers(site_of: Any) -> None:
    with pytest.raises(ValueError, match="2 servers and 1 runtimes"):
        site_of([NullRuntime(Signature((), ()))])


def test_a_taken_port_is_an_error_without_leftovers(start: Any, site_of: Any) -> None:
    running = start(site_of())
    other = start(site_of(), wait=False)
    other.server.http_port = running.server.http_port
    with pytest.raises(PortError, match=r"^the http listener .* something listens there already$"):
        other.wait(other.server.start())


def test_what_cannot_be_served_is_refused() -> None:
    from inferway.live import Server

    class Refused:
        path, tasks = "file.yaml", {}  # type: ignore[var-annotated]

        @staticmethod
        def unserved() -> list[str]:
            return ["network: not yet", "placement: not yet"]

    with pytest.raises(ServeError, match=r"file.yaml: network: not yet\nfile.yaml: placement"):
        Server(Refused())  # type: ignore[arg-type]


def test_a_held_request_is_served_when_a_server_falls_free(
    start: Any, gates: Any, until: Any, site_of: Any
) -> None:
    site: TaskSite = site_of(gates)
    site.pool.dispatcher = Holding(site.pool.dispatcher)
    for gate in gates:
        gate.opened.set()
    running = start(site)
    for gate in gates:
        gate.opened.clear()
    wires = [running.wire() for _ in range(3)]
    for wire in wires:
        wire.send(running.post(ONE))
    until(lambda: len(site.pool.held) == 2)
    wires[2].close()
    until(lambda: len(site.pool.held) == 1)
    gates[0].opened.set()
    assert [wire.read().status for wire in wires[:2]] == [200, 200]
    for wire in wires[:2]:
        wire.close()


class Holding:
    """A dispatcher whose policy holds what finds the first server busy."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def arrive(self, *arguments: Any) -> int:
        if self._inner.site.queue[0] > 0:
            return -2
        return int(self._inner.arrive(*arguments))


def test_concurrent_requests_each_get_their_own_answer(start: Any, site_of: Any) -> None:
    class Double(NullRuntime):
        def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
            return {"scores": np.ascontiguousarray(inputs["image"][:, :3] * 2)}

    signature = Signature((Tensor("image", "FP32", (-1, 4)),), (Tensor("scores", "FP32", (-1, 3)),))
    running = start(
        site_of([Double(signature) for _ in range(4)], count=(2, 2), policy="jiq-accurate")
    )
    wires = [running.wire() for _ in range(20)]
    for turn in range(10):
        for i, wire in enumerate(wires):
            tensor = ONE["inputs"][0] | {"data": [float(i), float(turn), 1.0, 0.0]}
            wire.send(running.post({"inputs": [tensor], "id": f"{i}/{turn}"}))
        for i, wire in enumerate(wires):
            answer = wire.read().json
            assert answer["id"] == f"{i}/{turn}"
            assert answer["outputs"][0]["data"] == [2.0 * i, 2.0 * turn, 2.0]
    for wire in wires:
        wire.close()
