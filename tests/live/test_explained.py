"""What a request is called, and why it was answered as it was."""

from __future__ import annotations

import re
from typing import Any

import pytest

ONE = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]
}
TINY = "/v2/models/digits/versions/tiny/infer"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"


def explain(running: Any, identity: str) -> Any:
    return running.get(f"/v2/models/digits/explain/{identity}")


def test_names_come_back(digits: Any) -> None:
    headers = f"X-Request-ID: order-7/a\r\nTraceparent: 00-{TRACE}-{SPAN}-01\r\n"
    answer = digits.infer(ONE, headers)
    assert answer.headers["x-request-id"] == "order-7/a"
    version, trace, span, flags = answer.headers["traceparent"].split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    assert re.fullmatch("[0-9a-f]{16}", span)
    assert span != SPAN
    # A refusal carries them too.
    refused = digits.infer({}, headers)
    assert (refused.status, refused.headers["x-request-id"]) == (400, "order-7/a")


@pytest.mark.parametrize(
    ("given", "parent"),
    [
        ("", ""),
        ("X-Request-Id: two words\r\n", f"traceparent: 00-{TRACE}-{'0' * 16}-01\r\n"),
        (f"X-Request-Id: {'a' * 129}\r\n", f"traceparent: ff-{TRACE}-{SPAN}-01\r\n"),
        ("X-Request-Id: \r\n", f"traceparent: 00-{TRACE.upper()}-{SPAN}-01\r\n"),
        ("X-Request-Id: caf\u00e9\r\n", f"traceparent: 00-{'0' * 32}-{SPAN}-01\r\n"),
    ],
)
def test_names_are_made_where_none_is_usable(digits: Any, given: str, parent: str) -> None:
    answers = [digits.infer(ONE, given + parent) for _ in range(2)]
    ids = [answer.headers["x-request-id"] for answer in answers]
    traces = [answer.headers["traceparent"] for answer in answers]
    assert len({*ids, *traces}) == 4
    for made, trace in zip(ids, traces, strict=True):
        assert re.fullmatch("[0-9a-f]{8}-[0-9a-f]+", made)
        assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-00", trace)
        assert TRACE not in trace


def test_an_answer_is_explained(digits: Any) -> None:
    parameters = {"accuracy": 0.8, "deadline_ms": 60_000, "priority": 3}
    answer = digits.infer(ONE | {"parameters": parameters}, "X-Request-Id: floor\r\n")
    after = answer.json["parameters"]
    told = explain(digits, "floor").json
    assert (told["outcome"], told["variant"], told["instance"]) == ("answered", "big", 0)
    assert (told["accuracy_floor"], told["priority"], told["rows"]) == (0.8, 3, 1)
    assert told["deadline_ms"] == pytest.approx(60_000)
    assert told["latency_ms"] == after["latency_ms"] >= told["service_ms"] > 0
    assert told["predicted_latency_ms"] == after["predicted_latency_ms"] == 10.0
    assert told["balance_after"] == pytest.approx(told["balance_before"] + 0.9 - 0.8)
    assert told["balance_after"] == pytest.approx(after["accuracy_balance"])
    tiny, big = told["candidates"]
    assert (tiny["variant"], tiny["allowed"], tiny["chosen"]) == ("tiny", False, False)
    assert (big["allowed"], big["chosen"], big["idle"], big["in_time"]) == (True, True, 1, True)
    assert (big["predicted_wait_ms"], big["predicted_service_ms"]) == (0.0, 10.0)
    assert "only variant" in told["reason"]


def test_a_pinned_one_leaves_the_balance(digits: Any) -> None:
    identity = digits.infer(ONE, path=TINY).headers["x-request-id"]
    told = explain(digits, identity).json
    assert told["pinned"] is True
    assert told["balance_after"] == told["balance_before"]
    assert told["reason"] == "the request was pinned to tiny"


def test_a_choice_between_variants_names_what_was_idle(digits: Any) -> None:
    told = explain(digits, digits.infer(ONE).headers["x-request-id"]).json
    assert re.fullmatch(
        r"the policy chose tiny of 2 variants; idle were tiny, big, and the mean accuracy was "
        r"(behind|ahead of) its target by a balance of -?[\d.e-]+",
        told["reason"],
    )


def test_refusals_are_explained(digits: Any) -> None:
    refused = digits.infer(ONE | {"parameters": {"deadline_ms": 0.01}}, "X-Request-Id: late\r\n")
    assert refused.status == 429
    told = explain(digits, "late").json
    assert (told["outcome"], told["variant"], told["latency_ms"]) == ("rejected", None, None)
    assert told["reason"] == refused.json["error"]
    assert [one["in_time"] for one in told["candidates"]] == [False, False]
    assert told["balance_after"] == told["balance_before"]


def test_queues_are_told_as_they_were(start: Any, site_of: Any, gates: Any, until: Any) -> None:
    for gate in gates:
        gate.opened.set()
    running = start(site_of(gates, buffer=2))
    gates[0].opened.clear()
    site = running.site
    wires = [running.wire(), running.wire()]
    for i, wire in enumerate(wires):
        wire.send(running.post(ONE, f"X-Request-Id: r{i}\r\n", path=TINY))
        until(lambda i=i: site.in_flight == i + 1)
    assert running.infer(ONE, "X-Request-Id: r2\r\n", path=TINY).status == 429
    gates[0].opened.set()
    assert [wire.read().status for wire in wires] == [200, 200]
    told = [explain(running, f"r{i}").json["candidates"][0] for i in range(3)]
    assert [one["queue"] for one in told] == [[0], [1], [2]]
    assert [one["idle"] for one in told] == [1, 0, 0]
    assert [one["full"] for one in told] == [0, 0, 1]


def test_what_is_forgotten_is_said_to_be(digits: Any) -> None:
    missing = explain(digits, "nobody")
    assert missing.status == 404
    assert "no request 'nobody' among the last 4096 of task 'digits'" in missing.json["error"]
    assert digits.get("/v2/models/other/explain/x").status == 404


def test_a_site_remembers_a_bounded_number(start: Any, site_of: Any) -> None:
    running = start(site_of())
    wire = running.wire()
    for first in range(0, 4096 + 1, 241):
        several = range(first, first + 241)
        wire.send(b"".join(running.post(ONE, f"X-Request-Id: r{i}\r\n") for i in several))
        assert [wire.read().status for _ in several] == [200] * 241
    assert explain(running, "r0").status == 404
    assert explain(running, "r1").status == 200
    assert explain(running, "r4096").status == 200
