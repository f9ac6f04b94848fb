"""Runtimes of variants, whatever runs them."""

from __future__ import annotations

from contextlib import closing

import pytest

from inferway.deployment import Model, Remote, Variant, load, runtime_of
from inferway.runtime import RemoteRuntime, zeros


def test_a_model_here_is_loaded() -> None:
    tasks = {"t": {"variants": {"v": {"model": "zoo://digits/tiny"}}}}
    with closing(runtime_of(load({"tasks": tasks}).tasks["t"].variants["v"])) as runtime:
        assert not isinstance(runtime, RemoteRuntime)
        answer = runtime.run(zeros(runtime.signature.inputs, 2))
    assert {len(array) for array in answer.values()} == {2}


def test_a_model_at_a_server_is_asked_for_nothing_yet() -> None:
    with closing(runtime_of(Variant(remote=Remote("http://127.0.0.1:1/v2/models/m")))) as runtime:
        assert isinstance(runtime, RemoteRuntime)
        assert runtime.known_signature is None


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        (Variant(), "it has no model, so that nothing can be run"),
        (
            Variant(model=Model(None, "https://a/m.onnx", "sha256:" + 64 * "0")),
            "https://a/m.onnx is not on this machine, so that nothing can be run",
        ),
    ],
)
def test_what_nothing_runs_is_said(variant: Variant, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        runtime_of(variant)
