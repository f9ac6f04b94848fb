"""MLServer, unmodified, as the server of a remote variant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlserver import MlServer

from inferway import check, load
from inferway.catalog import resolve
from inferway.catalog import testset as load_testset
from inferway.deployment import measured
from inferway.live import ServeError
from ports import free_ports

PATH = "/v2/models/digits"
FILE = """
tasks:
  digits:
    accuracy_target: 0.5
    variants:
      near: {model: zoo://digits/tiny, service: {mean: 50 ms}}
      far:
        accuracy: 0.95
        remote: {url: "URL", concurrency: 2, timeout: 5 s}
nodes:
  here: {instances: {digits/near: 1, digits/far: 2}}
"""


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlServer]:
    http, *others = free_ports(3)
    model, _ = resolve("zoo://digits/tiny")
    server = MlServer(tmp_path_factory.mktemp("mlserver"), model, http, (others[0], others[1]))
    server.start()
    yield server
    server.kill()


def written(folder: Path, url: str) -> Any:
    path = folder / "digits.yaml"
    path.write_text(FILE.replace("URL", url), encoding="utf-8")
    return load(path)


def said_of_remotes(deployment: Any) -> list[Any]:
    """What `check` says of remote servers, among what it says."""
    return [one for one in check(deployment) if one.kind in ("unreachable", "remote-unfit")]


def asking(images: Any) -> Any:
    data = [round(float(value), 4) for value in images.ravel()]
    shape = [len(images), 1, 32, 32]
    return {"inputs": [{"name": "image", "datatype": "FP32", "shape": shape, "data": data}]}


@pytest.mark.slow
def test_mlserver_is_a_remote_server(
    start: Any, remote: MlServer, tmp_path: Path, until: Any
) -> None:
    deployment = written(tmp_path, remote.url)
    assert said_of_remotes(deployment) == []
    deployment = measured(deployment)
    service_s = deployment.tasks["digits"].variants["far"].service_on("cpu").mean_s
    assert 1e-4 < service_s < 0.5
    running = start(deployment=deployment)
    site = running.site
    runtime = site.pool.instances[site.pool.first[site.pool.variants.index("far")]].runtime
    assert runtime.binary is False  # MLServer has no binary tensors over HTTP
    images = load_testset().images[:5]

    def answer(variant: str) -> Any:
        found = running.infer(asking(images), path=f"{PATH}/versions/{variant}/infer")
        assert found.status == 200, found.body
        output = found.json["outputs"][0]
        return np.array(output["data"]).reshape(output["shape"])

    # The same model on both sides.
    np.testing.assert_allclose(answer("far"), answer("near"), atol=1e-6)
    for _ in range(20):
        assert running.infer(asking(images[:1])).status == 200
    assert runtime.opened <= 2
    assert runtime.faults == {}
    # It dies, requests go on, and it is taken back when it has come up again.
    remote.kill()
    for _ in range(6):
        assert running.infer(asking(images[:1])).json["model_version"] == "near"
    pinned = running.infer(asking(images[:1]), path=f"{PATH}/versions/far/infer")
    assert pinned.status == 503
    remote.start()
    until(lambda: all(running.call(lambda: list(site.pool.health.healthy))))
    np.testing.assert_allclose(answer("far"), answer("near"), atol=1e-6)
    status = running.get("/status", admin=True).json["tasks"]["digits"]
    assert status["variants"]["far"]["mean_service_s"] > 0


@pytest.mark.slow
def test_a_model_that_mlserver_does_not_have_is_said(
    start: Any, remote: MlServer, tmp_path: Path
) -> None:
    deployment = written(tmp_path, remote.url.replace("digits", "other"))
    (found,) = said_of_remotes(deployment)
    assert found.kind == "unreachable"
    assert "the remote server answered 404" in found.message
    with pytest.raises(ValueError, match="far has no `service`, and its server cannot"):
        measured(deployment)


@pytest.mark.slow
def test_a_model_here_with_another_signature_is_refused(
    start: Any, remote: MlServer, tmp_path: Path
) -> None:
    (tmp_path / "tiny.onnx").write_bytes(_other_model())
    text = FILE.replace("URL", remote.url)
    text = text.replace("zoo://digits/tiny", "tiny.onnx, accuracy: 0.6")
    path = tmp_path / "other.yaml"
    path.write_text(text, encoding="utf-8")
    (found,) = said_of_remotes(load(path))
    assert found.kind == "remote-unfit"
    deployment = measured(load(path))
    with pytest.raises(ServeError, match=r"variants\.far: .* differs from \(image: FP32\[-1, 3\]"):
        start(deployment=deployment)


def _other_model() -> bytes:
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Identity", ["image"], ["probabilities"])],
        "other",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 3])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = made.SerializeToString()
    return content
