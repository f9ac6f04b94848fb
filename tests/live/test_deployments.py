"""Deployment files served whole: real models, and a policy from the user's own file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http

import inferway
from inferway.catalog import testset as load_testset
from inferway.live import ServeError, Server

TARGET = 0.9
DIGITS = """
tasks:
  digits:
    accuracy_target: {target}
    variants:
      tiny: {{model: zoo://digits/tiny, price: 1}}
      small: {{model: zoo://digits/small, price: 2}}
      large: {{model: zoo://digits/large, price: 5}}
nodes:
  here: {{instances: {{digits/tiny: 1, digits/small: 1, digits/large: 1}}, buffer: 16}}
dispatch: {{policy: {policy}}}
workload:
  digits: {{arrivals: {{process: poisson, rate: 200/s}}}}
"""


@pytest.fixture
def serve(start: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    def begin(policy: str, target: float = TARGET) -> Any:
        file = tmp_path / "digits.yaml"
        file.write_text(DIGITS.format(policy=policy, target=target))
        return start(deployment=inferway.load(file))

    return begin


def _ask(client: Any, images: np.ndarray) -> tuple[Any, np.ndarray]:
    tensor = tritonclient.http.InferInput("image", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    answer = client.infer("digits", [tensor])
    return answer.get_response(), answer.as_numpy("probabilities")


def test_the_digits_zoo_is_served_and_the_target_is_kept(serve: Callable[..., Any]) -> None:
    running = serve("tad-op")
    data = load_testset()
    client = tritonclient.http.InferenceServerClient(running.url)
    right, accuracy, balance = 0, 0.0, 0.0
    profile = {
        variant.name: variant.accuracy
        for variant in inferway.load(running.deployment.path).tasks["digits"].variants.values()
    }
    used = set()
    for start in range(0, 1200, 3):
        response, probabilities = _ask(client, data.images[start : start + 3])
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-4)
        right += int((probabilities.argmax(axis=1) == data.labels[start : start + 3]).sum())
        used.add(response["model_version"])
        accuracy += 3 * profile[response["model_version"]]
        balance = response["parameters"]["accuracy_balance"]
    client.close()
    assert balance == pytest.approx(accuracy - 1200 * TARGET, abs=1e-6)
    assert accuracy / 1200 >= TARGET - 0.005
    assert right / 1200 > TARGET - 0.03
    assert len(used) > 1


def test_every_variant_answers_as_its_model_does(serve: Callable[..., Any]) -> None:
    from inferway.catalog import resolve
    from inferway.runtime import OnnxRuntime

    running = serve("priced")
    images = load_testset().images[:5]
    client = tritonclient.http.InferenceServerClient(running.url)
    for variant in ("tiny", "small", "large"):
        tensor = tritonclient.http.InferInput("image", list(images.shape), "FP32")
        tensor.set_data_from_numpy(images)
        served = client.infer("digits", [tensor], model_version=variant)
        alone = OnnxRuntime(resolve(f"zoo://digits/{variant}")[0]).run({"image": images})
        np.testing.assert_array_equal(served.as_numpy("probabilities"), alone["probabilities"])
    client.close()


def test_a_policy_of_the_users_own_serves(
    serve: Callable[..., Any], examples: Path, tmp_path: Path
) -> None:
    (tmp_path / "cheapest.py").write_bytes((examples / "cheapest.py").read_bytes())
    running = serve("./cheapest.py:Cheapest")
    client = tritonclient.http.InferenceServerClient(running.url)
    images = load_testset().images
    variants = {_ask(client, images[i : i + 1])[0]["model_version"] for i in range(20)}
    client.close()
    # One request at a time finds all idle, so the lowest price wins every time.
    assert variants == {"tiny"}


def test_a_twin_only_file_is_refused(examples: Path) -> None:
    with pytest.raises(ServeError, match=r"tasks\.[a-z]+\.variants: .* have no `model`"):
        Server(inferway.load(examples / "paper-fleet.yaml"))


def test_a_policy_that_does_not_compile_is_refused(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "cheapest.py").write_text(
        "from typing import NamedTuple\n"
        "class Cheapest(NamedTuple):\n"
        "    x: float\n"
        "    @classmethod\n"
        "    def build(cls, fleet, *, target, rate_per_s):\n"
        "        return cls(1.0)\n"
        "    def choose(self, site, request, draw):\n"
        "        return site.nothing_of_this_name\n"
    )
    with pytest.raises(ServeError, match=r"tasks\.digits\.dispatch: policy"):
        serve("./cheapest.py:Cheapest")


def test_a_policy_that_drops_is_obeyed(
    serve: Callable[..., Any], examples: Path, tmp_path: Path
) -> None:
    drops = "\n    def pull(self, site, server, draw):\n        return 1, 0\n"
    (tmp_path / "cheapest.py").write_text((examples / "cheapest.py").read_text() + drops)
    running = serve("./cheapest.py:Cheapest")
    image = load_testset().images[:1]
    body = {
        "inputs": [
            {
                "name": "image",
                "datatype": "FP32",
                "shape": list(image.shape),
                "data": image.ravel().tolist(),
            }
        ]
    }
    answer = running.infer(body)
    assert answer.status == 504
    assert "the policy dropped the request" in answer.json["error"]


def test_service_times_are_kept_from_one_run_to_the_next(
    start: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "digits.yaml"
    predicted_ms: list[float] = []
    recalled = []
    times = tmp_path / "state" / "times.json"
    # What the file says counts more than what was measured.
    for said_of_it in ("", "", ", service: {mean: 2 s}"):
        file.write_text(
            "tasks:\n  digits:\n    variants:\n"
            f"      small: {{model: 'zoo://digits/small'{said_of_it}}}\n"
            "dispatch: {policy: fastest-only}\n"
        )
        running = start(deployment=inferway.load(file), times=times, log_level="info")
        said = [line for line in capfd.readouterr().err.splitlines() if "recalled" in line]
        recalled.append([json.loads(line) for line in said])
        client = tritonclient.http.InferenceServerClient(running.url)
        for _ in range(20):
            response, _ = _ask(client, load_testset().images[:1])
            predicted_ms.append(response["parameters"]["predicted_latency_ms"])
        client.close()
        running.wait(running.server.stop(grace_s=2.0))
    assert predicted_ms[40] > 1000  # what the file says
    assert predicted_ms[59] < 500  # what was measured
    assert recalled[0] == recalled[2] == []
    (told,) = recalled[1]
    assert (told["event"], told["variants"]) == ("service times recalled", ["small"])
    assert told["file"] == str(times)
    age = datetime.now().astimezone() - datetime.fromisoformat(told["measured"])
    assert timedelta(0) <= age < timedelta(hours=1)


def test_service_times_that_cannot_be_kept_are_said(
    start: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text("tasks: {digits: {variants: {tiny: {model: 'zoo://digits/tiny'}}}}\n")
    (tmp_path / "state").write_text("no folder")
    times = tmp_path / "state" / "times.json"
    running = start(deployment=inferway.load(file), times=times, log_level="warning")
    client = tritonclient.http.InferenceServerClient(running.url)
    _ask(client, load_testset().images[:1])
    client.close()
    running.wait(running.server.stop(grace_s=2.0))
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    (told,) = [line for line in said if line["event"] == "service times not kept"]
    assert (told["task"], told["file"]) == ("digits", str(times))
    assert told["reason"] in ("Not a directory", "File exists")
