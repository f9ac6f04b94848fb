"""A server whose models run on stated execution providers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway.catalog import testset as load_testset
from inferway.live import ServeError

FILE = """
tasks:
  digits:
    variants:
      tiny: {{model: zoo://digits/tiny, service: {{mean: 1 ms}}, providers: {providers}}}
      small: {{model: zoo://digits/small}}
"""


def deployment(folder: Path, providers: str) -> inferway.Deployment:
    file = folder / "digits.yaml"
    file.write_text(FILE.format(providers=providers))
    return inferway.load(file)


def test_a_model_is_served_on_its_providers(start: Any, tmp_path: Path) -> None:
    stated = "[AzureExecutionProvider, {CPUExecutionProvider: {use_arena: false}}]"
    running = start(deployment=deployment(tmp_path, stated))
    images = load_testset().images[:2]
    tensor = {"name": "image", "datatype": "FP32", "shape": list(images.shape)}
    body = {"inputs": [tensor | {"data": images.tolist()}]}
    answers = [
        running.infer(body, path=f"/v2/models/digits/versions/{name}/infer")
        for name in ("tiny", "small")
    ]
    assert [one.status for one in answers] == [200, 200]
    kinds = {
        name: running.get(f"/v2/models/digits/versions/{name}/config").json["instance_group"]
        for name in ("tiny", "small")
    }
    assert {name: one[0]["kind"] for name, one in kinds.items()} == {
        "tiny": "KIND_MODEL",
        "small": "KIND_CPU",
    }


def test_what_the_build_has_not_is_refused_at_the_start(start: Any, tmp_path: Path) -> None:
    with pytest.raises(ServeError) as caught:
        start(deployment=deployment(tmp_path, "[CUDAExecutionProvider, CPUExecutionProvider]"))
    assert "tasks.digits.variants.tiny: " in str(caught.value)
    assert "the installed ONNX Runtime has no CUDAExecutionProvider; it has" in str(caught.value)
