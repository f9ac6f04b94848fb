"""Which exporter the environment asks for."""

from __future__ import annotations

import sys

import pytest

from inferway.live.errors import ServeError
from inferway.live.tracing import tracer_from_environment


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRACES_EXPORTER", "EXPORTER_OTLP_ENDPOINT", "SDK_DISABLED", "TRACES_SAMPLER"):
        monkeypatch.delenv(f"OTEL_{name}", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)


def test_nothing_is_traced_unless_an_exporter_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert tracer_from_environment() is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert tracer_from_environment() is None
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(ServeError, match="'zipkin'; otlp, console and none are offered"):
        tracer_from_environment()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert tracer_from_environment() is None


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    for name in list(sys.modules):
        if name.startswith("opentelemetry"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ServeError, match=r"pip install 'inferway\[otel\]'"):
        tracer_from_environment()
