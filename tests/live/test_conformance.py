"""Our own server passes the whole conformance suite, with a null runtime and with a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway import conformance
from inferway.runtime import DTYPES, NullRuntime, Signature, Tensor

EVERY = Signature(
    tuple(Tensor(name.lower(), name, (-1, 2)) for name in DTYPES),
    tuple(Tensor(f"out-{name.lower()}", name, (-1, 3, 2)) for name in DTYPES),
)

ONE_ZOO_MODEL = """
tasks: {digits: {accuracy_target: 0.1, variants: {tiny: {model: zoo://digits/tiny}}}}
nodes: {here: {instances: {digits/tiny: 1}}}
"""


def passes_all(url: str, task: str) -> None:
    report = conformance.run(url, task=task)
    assert report.failures == []
    absent = [
        one.check.name for one in report.results if one.outcome is conformance.Outcome.NOT_OFFERED
    ]
    assert absent in ([], ["metadata: repository index"])


def test_one_datatype(digits: Any) -> None:
    passes_all(digits.url, "digits")


@pytest.mark.parametrize("signature", [EVERY], ids=["every datatype"])
def test_every_datatype(start: Any, site_of: Any, signature: Signature) -> None:
    runtimes = [NullRuntime(signature), NullRuntime(signature)]
    running = start(site_of(runtimes, task="a b/ü", signature=signature))
    passes_all(running.url, "a b/ü")


def test_a_real_model(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(ONE_ZOO_MODEL)
    running = start(deployment=inferway.load(file))
    passes_all(running.url, "digits")
