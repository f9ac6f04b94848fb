"""Every check over gRPC passes on a right server, and fails on one that is wrong in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from inferway import conformance
from inferway.conformance import CHECKS, CheckOutcome, ConformanceError
from inferway.conformance.checks import rpc
from inferway.live.grpc import messages

NAMES = [check.name for check in rpc.CHECKS]


def answering(method: str, change: Callable[[Any], Any]) -> Any:
    """Change the answers to one method."""

    def fault(called: str, data: bytes, respond: Any) -> Any:
        found = respond(called, data)
        if called == method:
            change(found)
        return found

    return fault


def failing_if_refused(reason: str, status: int = 500) -> Any:
    """End with INTERNAL, or another status, where the right server refuses for this reason."""

    def fault(called: str, data: bytes, respond: Any) -> Any:
        try:
            return respond(called, data)
        except Exception as error:
            if str(error) == reason:
                error.status = status  # type: ignore[attr-defined]
            raise

    return fault


def forgiving(reason: str) -> Any:
    """TargetAnswer nothing with OK where the right server refuses for this reason."""

    def fault(called: str, data: bytes, respond: Any) -> Any:
        try:
            return respond(called, data)
        except Exception as error:
            if str(error) == reason:
                return b""
            raise

    return fault


def everybody_ready(called: str, data: bytes, respond: Any) -> Any:
    return (
        messages.ModelReadyResponse(ready=True) if called == "ModelReady" else respond(called, data)
    )


def garbage(called: str, data: bytes, respond: Any) -> Any:
    return b"\xff\xff" if called == "ServerLive" else respond(called, data)


def one_version(found: Any) -> None:
    found.model_version = "1"


def swapped(found: Any) -> None:
    if found.outputs[0].contents.fp32_contents:
        values = found.outputs[0].contents.fp32_contents
        values[:] = [value + 1 for value in values]


def short(found: Any) -> None:
    if found.raw_output_contents:
        found.raw_output_contents[0] = found.raw_output_contents[0][:-4]


def two_outputs(found: Any) -> None:
    if len(found.outputs) == 1:
        found.outputs.add(name="more", datatype="FP32")


FAULTS: list[tuple[str, Any]] = [
    ("grpc: live", garbage),
    ("grpc: live", answering("ServerLive", lambda found: found.Clear())),
    ("grpc: ready", answering("ServerReady", lambda found: found.Clear())),
    ("grpc: model ready", everybody_ready),
    ("grpc: model ready", answering("ModelReady", lambda found: found.Clear())),
    ("grpc: model ready", failing_if_refused("unknown model")),
    ("grpc: server metadata", answering("ServerMetadata", lambda found: found.Clear())),
    ("grpc: model metadata", answering("ModelMetadata", lambda found: found.inputs.pop())),
    ("grpc: model metadata", answering("ModelMetadata", lambda found: found.versions.pop())),
    (
        "grpc: model configuration",
        answering("ModelConfig", lambda found: setattr(found.config, "name", "else")),
    ),
    (
        "grpc: model configuration",
        answering("ModelConfig", lambda found: found.config.input[0].dims.append(1)),
    ),
    (
        "grpc: model configuration",
        answering("ModelConfig", lambda found: setattr(found.config.output[0], "data_type", 99)),
    ),
    ("grpc: model configuration", forgiving("unknown model")),
    (
        "grpc: statistics",
        answering("ModelStatistics", lambda found: setattr(found.model_stats[0], "version", "9")),
    ),
    (
        "grpc: statistics",
        answering(
            "ModelStatistics",
            lambda found: found.model_stats[0].inference_stats.ClearField("compute_infer"),
        ),
    ),
    (
        "grpc: statistics",
        answering(
            "ModelStatistics",
            lambda found: [setattr(one, "inference_count", 7) for one in found.model_stats],
        ),
    ),
    ("grpc: typed contents", answering("ModelInfer", swapped)),
    ("grpc: raw contents", answering("ModelInfer", short)),
    ("grpc: id comes back", answering("ModelInfer", lambda found: found.ClearField("id"))),
    ("grpc: requested outputs", answering("ModelInfer", two_outputs)),
    ("grpc: each version", answering("ModelInfer", one_version)),
    ("grpc: an unknown model is refused", forgiving("unknown model")),
    ("grpc: an unknown version is refused", failing_if_refused("unknown version")),
    ("grpc: a missing input is refused", failing_if_refused("missing input")),
    ("grpc: an unknown input is refused", failing_if_refused("unknown input")),
    ("grpc: an unknown datatype is refused", failing_if_refused("unknown datatype")),
    ("grpc: another shape is refused", forgiving("another shape")),
    ("grpc: truncated data is refused", failing_if_refused("wrong size")),
    ("grpc: surplus contents are refused", forgiving("surplus")),
    ("grpc: an unknown output is refused", forgiving("unknown output")),
    ("grpc: health protocol", answering("Check", lambda found: found.Clear())),
    ("grpc: the server goes on", answering("ModelInfer", lambda found: found.Clear())),
]


def test_a_right_server_passes_every_check(fake: Any, fake_rpc: Any) -> None:
    report = conformance.run(fake.url, task="fake", grpc_url=fake_rpc.url)
    assert report.failures == []
    assert report.counts["passed"] == len(CHECKS) + len(rpc.CHECKS)


def test_every_check_has_a_server_that_fails_it() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert {name for name, _ in FAULTS} == set(NAMES)


@pytest.mark.parametrize(
    ("name", "fault"), FAULTS, ids=[f"{name}, {n}" for n, (name, _) in enumerate(FAULTS)]
)
def test_a_wrong_server_fails(fake: Any, fake_rpc: Any, name: str, fault: Any) -> None:
    fake_rpc.fault = fault
    (check,) = [one for one in rpc.CHECKS if one.name == name]
    report = conformance.run(fake.url, task="fake", grpc_url=fake_rpc.url, checks=[check])
    (result,) = report.results
    assert result.outcome is CheckOutcome.FAILED, result.evidence


def test_extensions_are_optional(fake: Any, fake_rpc: Any) -> None:
    fake_rpc.fault = answering("ServerMetadata", lambda found: found.ClearField("extensions"))
    names = ("grpc: model configuration", "grpc: statistics")
    checks = [one for one in rpc.CHECKS if one.name in names]
    report = conformance.run(fake.url, task="fake", grpc_url=fake_rpc.url, checks=checks)
    assert [one.outcome for one in report.results] == [CheckOutcome.NOT_OFFERED] * 2


def test_the_health_protocol_is_optional(fake: Any, fake_rpc: Any) -> None:
    def without(called: str, data: bytes, respond: Any) -> Any:
        if called == "Check":
            respond("ModelReady", b"")
        return respond(called, data)

    def unimplemented(called: str, data: bytes, respond: Any) -> Any:
        return failing_if_refused("unknown model", 501)(
            called, data, lambda *call: without(*call, respond)
        )

    fake_rpc.fault = unimplemented
    checks = [one for one in rpc.CHECKS if one.name == "grpc: health protocol"]
    report = conformance.run(fake.url, task="fake", grpc_url=fake_rpc.url, checks=checks)
    assert report.results[0].outcome is CheckOutcome.NOT_OFFERED


def test_an_address_without_a_port_is_one_sentence(fake: Any) -> None:
    for url in ("127.0.0.1", "ftp://127.0.0.1:1", "127.0.0.1:many"):
        with pytest.raises(ConformanceError, match="is no gRPC address"):
            conformance.run(fake.url, task="fake", grpc_url=url)


def test_nothing_there_fails_each_check(fake: Any) -> None:
    report = conformance.run(
        fake.url, task="fake", grpc_url="127.0.0.1:1", checks=rpc.CHECKS[:1], timeout_s=2.0
    )
    assert "UNAVAILABLE" in report.failures[0]
