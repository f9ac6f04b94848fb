"""Every check passes on a right server, and fails on one that is wrong in what it asks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from inferway import conformance
from inferway.conformance import CHECKS, CheckOutcome, ConformanceError

NAMES = [check.name for check in CHECKS]
LENGTH = "inference-header-content-length"
INFER = "/infer"


def wrong(change: Callable[[Any], Any], when: Callable[[Any], bool]) -> Any:
    """Change the reply to some requests."""
    return lambda request, respond: change(respond(request)) if when(request) else respond(request)


def failing(when: Callable[[Any], bool], status: int = 500) -> Any:
    """TargetAnswer some requests with a status and no reason."""

    def fault(request: Any, respond: Any) -> Any:
        reply = respond(request)
        if when(request):
            reply.status, reply.body = status, b"oh"
            reply.headers = {}
        return reply

    return fault


def failing_if_refused(reason: str) -> Any:
    """Fail where the right server refuses for this reason."""

    def fault(request: Any, respond: Any) -> Any:
        reply = respond(request)
        if reply.status >= 400 and reply.json["error"] == reason:
            reply.status = 500
        return reply

    return fault


def rewritten(change: Callable[[Any], None], when: Callable[[Any], bool] | None = None) -> Any:
    """Change an inference request's JSON before it is answered, as a server that misreads it."""

    def fault(request: Any, respond: Any) -> Any:
        if is_infer(request) and request.headers.get("content-encoding") is None:
            try:
                document = request.json
            except ValueError:
                return respond(request)
            if isinstance(document, dict) and (when is None or when(request)):
                at = int(request.headers.get(LENGTH, len(request.body)))
                change(document)
                text = json.dumps(document).encode()
                request.body = text + request.body[at:]
                if LENGTH in request.headers:
                    request.headers[LENGTH] = str(len(text))
        return respond(request)

    return fault


def is_infer(request: Any) -> bool:
    return request.method == "POST" and request.path.endswith(INFER)


def at(path: str) -> Callable[[Any], bool]:
    return lambda request: request.path == path


def with_id(test: Callable[[str], bool]) -> Callable[[Any], bool]:
    def when(request: Any) -> bool:
        try:
            return is_infer(request) and test(request.json.get("id", ""))
        except (ValueError, AttributeError):
            return False

    return when


def having(word: bytes) -> Callable[[Any], bool]:
    return lambda request: is_infer(request) and word in request.body


def without_output(reply: Any) -> Any:
    return reply.saying(outputs=reply.json["outputs"][:1]) if reply.status == 200 else reply


def one_element_less(reply: Any) -> Any:
    if reply.status == 200 and LENGTH not in reply.headers:
        outputs = reply.json["outputs"]
        outputs[0]["data"].pop()
        return reply.saying(outputs=outputs)
    return reply


def reverse_nested(document: dict[str, Any]) -> None:
    for one in document.get("inputs", []):
        if isinstance(one.get("data", [0])[0], list):
            one["data"] = [row[::-1] for row in one["data"][::-1]]
            if one["name"] == "x":
                one["data"][0][0] = 9.0


def big_endian(request: Any, respond: Any) -> Any:
    if is_infer(request) and LENGTH in request.headers and request.headers[LENGTH].isdigit():
        cut = int(request.headers[LENGTH])
        size = 24  # x is float32 [2, 3]
        tail = request.body[cut:]
        if len(tail) >= size:
            turned = b"".join(tail[n : n + 4][::-1] for n in range(0, size, 4))
            request.body = request.body[:cut] + turned + tail[size:]
    return respond(request)


def unlabeled(reply: Any) -> Any:
    reply.headers.pop(LENGTH, None)
    return reply


def last_byte_lost(reply: Any) -> Any:
    if LENGTH in reply.headers:
        reply.body = reply.body[:-1]
    return reply


def no_binary_wish(document: dict[str, Any]) -> None:
    for one in document.get("outputs", []):
        one.pop("parameters", None)


def no_override(document: dict[str, Any]) -> None:
    if (document.get("parameters") or {}).get("binary_data_output"):
        no_binary_wish(document)


def no_outputs(document: dict[str, Any]) -> None:
    if len(document.get("outputs", [])) == 1:
        document.pop("outputs")


def mixes(request: Any) -> bool:
    return is_infer(request) and b'"data"' in request.body and b"binary_data_size" in request.body


def falsely_packed(reply: Any) -> Any:
    reply.headers["Content-Encoding"] = "gzip"
    return reply


def zero(document: dict[str, Any]) -> None:
    document["inputs"][0]["data"] = [0.0] * 6


def misconfigured(change: Callable[[Any], None]) -> Any:
    """Change the model's configuration."""

    def changed(reply: Any) -> Any:
        document = reply.json
        change(document)
        return reply.saying(**document)

    return wrong(changed, lambda request: request.path.startswith(f"{MODEL}/config"))


def miscounted(change: Callable[[Any], None], when: Callable[[Any], bool] | None = None) -> Any:
    """Change each entry of the statistics."""

    def changed(reply: Any) -> Any:
        listed = reply.json["model_stats"]
        for one in listed:
            change(one)
        return reply.saying(model_stats=listed)

    def tells(request: Any) -> bool:
        return request.path.startswith((f"{MODEL}/", STATS)) and request.path.endswith("/stats")

    return wrong(changed, when or tells)


def forgiving(reason: str, status: int = 200, body: bytes = b"{}") -> Any:
    def fault(request: Any, respond: Any) -> Any:
        reply = respond(request)
        if reply.status >= 400 and reply.json["error"] == reason:
            reply.status, reply.body = status, body
        return reply

    return fault


MODEL = "/v2/models/fake"
STATS = "/v2/models/stats"
NOBODY = "/v2/models/inferway-conformance-nobody"
FAULTS: list[tuple[str, Any]] = [
    ("health: live", failing(at("/v2/health/live"), 503)),
    ("health: ready", wrong(lambda reply: reply.saying(live=False), at("/v2/health/ready"))),
    ("health: model ready", failing(at(f"{MODEL}/ready"), 404)),
    ("health: versions ready", failing(at(f"{MODEL}/versions/2/ready"), 404)),
    ("health: an unknown model is not ready", forgiving("unknown model")),
    ("metadata: server", wrong(lambda reply: reply.saying(extensions=None), at("/v2"))),
    ("metadata: server, with a slash", wrong(lambda r: r.saying(name="else"), at("/v2/"))),
    ("metadata: model", wrong(lambda reply: reply.saying(platform=None), at(MODEL))),
    ("metadata: model", wrong(lambda reply: reply.saying(inputs=None), at(MODEL))),
    ("metadata: model", wrong(lambda reply: reply.saying(name="else"), at(MODEL))),
    ("metadata: versions", wrong(lambda r: r.saying(outputs=[]), at(f"{MODEL}/versions/2"))),
    ("metadata: an unknown model is refused", forgiving("unknown model")),
    ("metadata: an unknown model is refused", forgiving("unknown model", 404, b"gone")),
    ("metadata: an unknown version is refused", forgiving("unknown version", 404, b'{"e": "x"}')),
    ("metadata: answers have the outputs that are named", wrong(without_output, is_infer)),
    (
        "metadata: repository index",
        lambda request, respond: (
            type(respond(request))(200, b"[]") if "index" in request.path else respond(request)
        ),
    ),
    ("metadata: list of models", wrong(lambda r: r.saying(models=["other"]), at("/v2/models"))),
    ("metadata: list of models", wrong(lambda r: r.saying(models="fake"), at("/v2/models"))),
    ("metadata: list of models", failing(at("/v2/models"))),
    ("metadata: model configuration", failing(at(f"{MODEL}/versions/2/config"), 404)),
    ("metadata: model configuration", misconfigured(lambda found: found.update(name="else"))),
    (
        "metadata: model configuration",
        misconfigured(lambda found: found.update(max_batch_size=-1)),
    ),
    (
        "metadata: model configuration",  # the dims lack the batch axis all the same
        misconfigured(lambda found: found.update(max_batch_size=0)),
    ),
    ("metadata: model configuration", misconfigured(lambda found: found["input"].pop())),
    (
        "metadata: model configuration",
        misconfigured(lambda found: found["output"][1].update(data_type="TYPE_BYTES")),
    ),
    (
        "metadata: model configuration",
        lambda request, respond: (
            type(respond(request))(200, b"{}")
            if request.path == f"{NOBODY}/config"
            else respond(request)
        ),
    ),
    ("metadata: statistics", failing(at(STATS), 404)),
    ("metadata: statistics", failing(at(f"{MODEL}/stats"))),
    ("metadata: statistics", miscounted(lambda one: one.update(name="else"), at(STATS))),
    (
        "metadata: statistics",
        miscounted(lambda one: one.update(version="1"), at(f"{MODEL}/versions/2/stats")),
    ),
    ("metadata: statistics", miscounted(lambda one: one.pop("execution_count"))),
    ("metadata: statistics", miscounted(lambda one: one["inference_stats"].pop("queue"))),
    (
        "metadata: statistics",
        miscounted(lambda one: one["inference_stats"]["success"].update(ns=-1)),
    ),
    ("metadata: statistics", miscounted(lambda one: one.update(inference_count=7))),
    (
        "metadata: statistics",
        lambda request, respond: (
            type(respond(request))(200, b"{}")
            if request.path == f"{NOBODY}/stats"
            else respond(request)
        ),
    ),
    ("infer: flat data", wrong(one_element_less, is_infer)),
    ("infer: nested data", rewritten(reverse_nested)),
    ("infer: without a version", failing(at(f"{MODEL}{INFER}"))),
    (
        "infer: each version",
        wrong(lambda r: r.saying(model_version="1"), at(f"{MODEL}/versions/2{INFER}")),
    ),
    ("infer: id comes back", wrong(lambda reply: reply.saying(id=None), with_id("42".__eq__))),
    ("infer: any text as id", failing(with_id(lambda one: not one.isascii()))),
    ("infer: parameters", failing(having(b"conformance_flag"), 400)),
    ("infer: requested outputs", rewritten(no_outputs)),
    (
        "infer: no Content-Type",
        failing(lambda r: is_infer(r) and "content-type" not in r.headers, 415),
    ),
    ("binary: inputs", big_endian),
    ("binary: inputs", failing(lambda r: is_infer(r) and LENGTH in r.headers, 400)),
    ("binary: outputs, each", rewritten(no_binary_wish)),
    ("binary: outputs, all", wrong(unlabeled, having(b"binary_data_output"))),
    ("binary: inputs and outputs", wrong(last_byte_lost, having(b"binary_data_output"))),
    ("binary: an output overrides the request", rewritten(no_override)),
    ("binary: mixed with JSON", failing(mixes, 400)),
    (
        "binary: header without bytes",
        failing(lambda r: r.headers.get(LENGTH) == str(len(r.body)), 400),
    ),
    ("binary: truncated data is refused", failing_if_refused("truncated")),
    ("binary: surplus data is refused", forgiving("surplus")),
    ("binary: a size unlike the shape is refused", failing_if_refused("wrong size")),
    ("binary: a header beyond the body is refused", failing_if_refused("header beyond the body")),
    ("binary: a header inside the JSON is refused", failing_if_refused("header inside")),
    ("binary: a header that is no number is refused", failing_if_refused("header is no number")),
    ("connection: gzip body", failing(lambda r: r.headers.get("content-encoding") == "gzip")),
    ("connection: deflate body", failing(lambda r: r.headers.get("content-encoding") == "deflate")),
    (
        "connection: compressed answer",
        wrong(falsely_packed, lambda r: "accept-encoding" in r.headers),
    ),
    ("connection: chunked body", failing(lambda r: "transfer-encoding" in r.headers, 411)),
    ("connection: kept", failing(lambda r: 200 in r.before)),
    ("connection: kept after a refusal", failing(lambda r: 400 in r.before)),
    ("connection: eight clients at once", rewritten(zero, with_id(lambda one: "-" in one))),
    ("refusal: malformed JSON", failing_if_refused("malformed")),
    ("refusal: JSON that is no request", failing_if_refused("no request")),
    ("refusal: unknown model", forgiving("unknown model")),
    ("refusal: unknown version", failing_if_refused("unknown version")),
    ("refusal: missing input", forgiving("missing input", 400, b'{"error": ""}')),
    ("refusal: unknown input", forgiving("unknown input", 422, b'{"detail": []}')),
    ("refusal: another datatype", forgiving("another datatype")),
    ("refusal: unknown datatype", forgiving("unknown datatype")),
    ("refusal: another shape", forgiving("another shape")),
    ("refusal: negative shape", forgiving("negative shape")),
    ("refusal: too few elements", forgiving("too few")),
    ("refusal: too many elements", forgiving("too many")),
    ("refusal: no data", failing_if_refused("no data")),
    ("refusal: elements of another type", forgiving("elements of another type")),
    ("refusal: unknown output", forgiving("unknown output")),
    ("refusal: unknown path", failing(lambda request: "/v2/inferway-" in request.path)),
    ("refusal: wrong method", failing_if_refused("wrong method")),
    ("refusal: the server goes on", failing(is_infer, 503)),
]


def test_a_right_server_passes_every_check(fake: Any) -> None:
    report = conformance.run(fake.url)
    assert report.failures == []
    assert report.passed
    assert report.task == "fake"  # found through the index, where `other` is not ready
    assert report.counts == {"passed": len(CHECKS), "failed": 0, "not offered": 0}


def test_every_check_has_a_server_that_fails_it() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert {name for name, _ in FAULTS} == set(NAMES)


@pytest.mark.parametrize(
    ("name", "fault"), FAULTS, ids=[f"{name}, {n}" for n, (name, _) in enumerate(FAULTS)]
)
def test_a_wrong_server_fails(fake: Any, name: str, fault: Any) -> None:
    fake.fault = fault
    (check,) = [one for one in CHECKS if one.name == name]
    report = conformance.run(fake.url, task="fake", checks=[check])
    (result,) = report.results
    assert result.outcome is CheckOutcome.FAILED, result.evidence
    assert result.evidence
    assert not report.passed
    assert report.failures == [f"{name}: {result.evidence}"]


def test_what_is_optional_may_be_absent(fake: Any) -> None:
    def bare(request: Any, respond: Any) -> Any:
        if request.headers.get("content-encoding") or "versions" in request.path:
            return forgiving_status(respond(request), 415)
        if "repository" in request.path or request.path in ("/v2/", "/v2/models"):
            return forgiving_status(respond(request), 404)
        reply = respond(request)
        if request.path == "/v2":
            return reply.saying(extensions=[])
        if request.path == MODEL:
            return reply.saying(versions=None)
        if is_infer(request) and reply.status == 200:
            return reply.saying(model_version=None)
        return reply

    def forgiving_status(reply: Any, status: int) -> Any:
        reply.status, reply.body = status, b'{"error": "not here"}'
        return reply

    fake.fault = bare
    report = conformance.run(fake.url, task="fake")
    assert report.passed, report.failures
    absent = {one.check.name for one in report.results if one.outcome is CheckOutcome.NOT_OFFERED}
    assert absent == {
        "health: versions ready",
        "metadata: server, with a slash",
        "metadata: versions",
        "metadata: repository index",
        "metadata: list of models",
        "metadata: model configuration",
        "metadata: statistics",
        "infer: each version",
        "connection: gzip body",
        "connection: deflate body",
        *(name for name in NAMES if name.startswith("binary")),
    }


def test_statistics_may_be_for_others(fake: Any) -> None:
    fake.fault = failing(at(STATS), 403)
    checks = [check for check in CHECKS if check.name == "metadata: statistics"]
    report = conformance.run(fake.url, task="fake", checks=checks)
    assert report.results[0].outcome is CheckOutcome.NOT_OFFERED


def test_a_server_that_asks_for_versions_is_asked_with_one(fake: Any) -> None:
    def strict(request: Any, respond: Any) -> Any:
        if request.path in (MODEL, f"{MODEL}/ready", f"{MODEL}{INFER}"):
            reply = respond(request)
            reply.status, reply.body = 400, b'{"error": "which version?"}'
            return reply
        return respond(request)

    fake.fault = strict
    report = conformance.run(fake.url, task="fake", version="2")
    assert report.passed, report.failures
    assert report.counts["not offered"] == 3
    # The index names a version too.
    assert conformance.run(fake.url).passed


def test_refusals_prove_nothing_where_all_is_refused(fake: Any) -> None:
    fake.fault = failing(is_infer, 400)
    report = conformance.run(fake.url, task="fake")
    outcomes = {one.check.name: one for one in report.results}
    assert outcomes["refusal: another shape"].outcome is CheckOutcome.FAILED
    assert "without a mistake is refused too" in outcomes["refusal: another shape"].evidence


def test_when_the_server_goes_the_rest_fails_at_once(fake: Any) -> None:
    gone = []

    def leave(request: Any, respond: Any) -> Any:
        if gone or request.path == "/v2/":
            gone.append(request.path)
            raise ConnectionError
        return respond(request)

    fake.fault = leave
    report = conformance.run(fake.url, task="fake")
    assert report.counts["failed"] == len(CHECKS) - NAMES.index("metadata: server, with a slash")
    assert "no longer answers" in report.results[-1].evidence
    assert len(gone) == 2  # the check's own call and the question whether it still answers


def test_sizes_are_tried_until_the_model_answers(fake: Any) -> None:
    def one_row(request: Any, respond: Any) -> Any:
        reply = respond(request)
        if is_infer(request) and reply.status == 200 and b'"shape": [2, ' in request.body:
            reply.status, reply.body, reply.headers = 400, b'{"error": "one row, please"}', {}
        return reply

    fake.fault = one_row
    report = conformance.run(fake.url)
    assert report.passed, report.failures


def test_a_seed_repeats_the_requests(fake: Any) -> None:
    bodies: list[list[bytes]] = [[]]

    def listening(request: Any, respond: Any) -> Any:
        bodies[-1].append(request.body)
        return respond(request)

    fake.fault = listening
    checks = [check for check in CHECKS if check.name.startswith(("infer", "binary"))]
    conformance.run(fake.url, checks=checks)
    bodies.append([])
    conformance.run(fake.url, checks=checks)
    bodies.append([])
    conformance.run(fake.url, checks=checks, seed=2)
    assert bodies[0] == bodies[1] != bodies[2]


def test_nothing_there_is_one_sentence() -> None:
    with pytest.raises(ConformanceError, match=r"no server answers at http://127\.0\.0\.1:1"):
        conformance.run("http://127.0.0.1:1", task="digits")
    with pytest.raises(ConformanceError, match="is no server address"):
        conformance.run("ftp://example", task="digits")


def test_without_a_task_and_an_index_one_is_asked_for(fake: Any) -> None:
    fake.fault = failing(lambda request: "repository" in request.path, 404)
    with pytest.raises(ConformanceError, match="name a task"):
        conformance.run(fake.url)


def test_a_model_that_is_not_there_is_one_sentence(fake: Any) -> None:
    with pytest.raises(ConformanceError, match="has no model 'digits': name another"):
        conformance.run(fake.url, task="digits")


def test_progress_is_told(fake: Any) -> None:
    told: list[tuple[str, float]] = []
    conformance.run(
        fake.url, checks=CHECKS[:4], progress=lambda name, done: told.append((name, done))
    )
    assert told == [*zip(NAMES[:4], (0.0, 0.25, 0.5, 0.75), strict=True), ("done", 1.0)]
