"""`inferway serve FOLDER`: two tasks of several variants, whose accuracies nobody knows."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from inferway.catalog import resolve
from inferway.catalog import testset as load_testset
from inferway.runtime import OnnxRuntime

LIMIT_S = 120.0
PLACES = {"digits/tiny": "tiny", "digits/large/3": "large", "digits/large/12": "small"}
PLACES |= {"again/1": "mini", "again/2": "medium"}
CODE = """
import numpy as np


class Model:
    def predict(self, inputs):
        return {"probabilities": np.full((len(inputs["image"]), 10), 0.1, np.float32)}
"""


def put(folder: Path, place: str, name: str) -> None:
    (folder / place).mkdir(parents=True, exist_ok=True)
    shutil.copy(resolve(f"zoo://digits/{name}")[0], folder / place / "model.onnx")


class Serving:
    """A process of `inferway serve`."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "inferway", "serve", folder.name, "--json", "--no-grpc"]
        command += ["--http-port", "0", "--admin-port", "0", "--drain-delay", "0"]
        self.folder, self.log = folder, folder.parent / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder.parent
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        self.ports = json.loads(line)

    def ask(self, path: str, body: Any = None, port: str = "http_port") -> Any:
        content = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.ports[port]}{path}"
        with urlopen(Request(url, content), timeout=LIMIT_S) as answer:
            return json.loads(answer.read())

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=LIMIT_S)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    models = tmp_path_factory.mktemp("served") / "models"
    for place, name in PLACES.items():
        put(models, place, name)
    (models / "notes.txt").touch()
    (models / "again" / "code").mkdir()
    (models / "again" / "code" / "model.py").write_text(CODE)
    one = Serving(models)
    yield one
    one.close()


def images(rows: int = 2, **parameters: Any) -> dict[str, Any]:
    data = load_testset().images[:rows]
    tensor = {"name": "image", "datatype": "FP32", "shape": list(data.shape), "data": data.tolist()}
    return {"inputs": [tensor], **({"parameters": parameters} if parameters else {})}


def test_a_folder_is_served(serving: Serving) -> None:
    expected = {"digits/tiny": "tiny", "digits/large": "small", "again/1": "mini"}
    data = load_testset().images[:2]
    for pair, name in expected.items():
        task, variant = pair.split("/")
        told = serving.ask(f"/v2/models/{task}/versions/{variant}/infer", images())
        runtime = OnnxRuntime(resolve(f"zoo://digits/{name}")[0])
        own = runtime.run({"image": data})["probabilities"]
        runtime.close()
        (output,) = told["outputs"]
        np.testing.assert_allclose(np.reshape(output["data"], own.shape), own, atol=1e-5)
    told = serving.ask("/v2/models/again/versions/code/infer", images())
    assert told["outputs"][0]["data"] == pytest.approx([0.1] * 20)
    for task, variants in {"digits": {"tiny", "large", "new"}, "again": {"1", "2", "code"}}.items():
        told = serving.ask(f"/v2/models/{task}/infer", images())
        assert told["model_version"] in variants
        assert "accuracy_balance" not in told["parameters"]
    with pytest.raises(HTTPError) as refused:
        serving.ask("/v2/models/digits/infer", images(accuracy=0.9))
    with refused.value as answer:
        assert answer.code == 400
        assert (
            "no variant of task 'digits' has a known accuracy" in json.loads(answer.read())["error"]
        )
    log = serving.log.read_text()
    assert "left alone, as it is no MODEL/VERSION/model.onnx: models/notes.txt" in log
    for task, variants in {"digits": "large, tiny", "again": "1, 2, code"}.items():
        assert (
            f"tasks.{task}: {variants} have no `accuracy`, which `inferway profile models --data "
            "TEST --write` measures; without, the task is served without a target"
        ) in log


def test_a_version_that_comes_is_served_after_a_signal(serving: Serving) -> None:
    put(serving.folder, "digits/new/1", "mini")
    serving.process.send_signal(signal.SIGHUP)
    ends_s, pause = time.monotonic() + LIMIT_S, threading.Event()
    while "new" not in serving.ask("/status", port="admin_port")["tasks"]["digits"]["variants"]:
        assert time.monotonic() < ends_s, serving.log.read_text()
        pause.wait(0.05)
    told = serving.ask("/v2/models/digits/versions/new/infer", images())
    assert told["model_version"] == "new"
