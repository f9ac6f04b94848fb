"""Our own server passes the whole conformance suite, with null runtimes and with a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway import conformance
from inferway.live import Keys
from inferway.protocol import DTYPES, Signature, Tensor
from inferway.runtime import NullRuntime

EVERY = Signature(
    tuple(Tensor(name.lower(), name, (-1, 2)) for name in DTYPES),
    tuple(Tensor(f"out-{name.lower()}", name, (-1, 3, 2)) for name in DTYPES),
)
BUT_FP16 = Signature(
    tuple(tensor for tensor in EVERY.inputs if tensor.datatype != "FP16"), EVERY.outputs[:3]
)

ONE_ZOO_MODEL = """
tasks: {digits: {accuracy_target: 0.1, variants: {tiny: {model: zoo://digits/tiny}}}}
nodes: {here: {instances: {digits/tiny: 1}}}
"""


def passes_all(url: str, task: str, grpc_url: str | None = None) -> list[str]:
    """Hold the server to the suite, which finds the task; returns what it does not offer."""
    report = conformance.run(url, grpc_url=grpc_url)
    assert report.failures == []
    assert report.task == task
    return [
        one.check.name
        for one in report.results
        if one.outcome is conformance.CheckOutcome.NOT_OFFERED
    ]


def test_one_datatype(digits: Any) -> None:
    assert passes_all(digits.url, "digits") == []


def test_a_real_model(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(ONE_ZOO_MODEL)
    running = start(deployment=inferway.load(file))
    assert passes_all(running.url, "digits") == []


@pytest.mark.parametrize(
    ("signature", "absent"),
    [(EVERY, ["grpc: typed contents"]), (BUT_FP16, [])],
    ids=["every datatype", "all but FP16"],
)
def test_every_datatype_over_http_and_grpc(
    start: Any,
    site_of: Any,
    capsys: pytest.CaptureFixture[str],
    signature: Signature,
    absent: list[str],
) -> None:
    task = "a b/ü"  # names are escaped where they have to be
    runtimes = [NullRuntime(signature), NullRuntime(signature)]
    site = site_of(runtimes, task=task, signature=signature)
    running = start(site, grpc_port=0, log_level="error")
    found = passes_all(running.url, task, f"127.0.0.1:{running.server.grpc_port}")
    # FP16 has no field among the typed contents; only raw ones hold it.
    assert found == absent
    assert capsys.readouterr().err == ""  # nothing broke on the way


def test_a_server_with_keys_is_given_one(start: Any, site_of: Any) -> None:
    running = start(site_of(), keys=Keys(["a-key-of-sixteen-letters"]), grpc_port=0)
    grpc_url = f"127.0.0.1:{running.server.grpc_port}"
    report = conformance.run(running.url, grpc_url=grpc_url, key="a-key-of-sixteen-letters")
    assert report.failures == []
    with pytest.raises(conformance.ConformanceError):
        conformance.run(running.url, key="another-key-of-sixteen")
