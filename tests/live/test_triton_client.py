"""NVIDIA's own client, unchanged, in its default binary mode and in JSON mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException


@pytest.fixture
def client(digits: Any) -> Iterator[Any]:
    made = tritonclient.http.InferenceServerClient(digits.url)
    yield made
    made.close()


def _input(rows: int, binary: bool) -> Any:
    values = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    tensor = tritonclient.http.InferInput("image", values.shape, "FP32")
    tensor.set_data_from_numpy(values, binary_data=binary)
    return tensor


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.is_model_ready("digits", "big")
    assert not client.is_model_ready("other")
    extensions = ["binary_tensor_data", "model_configuration", "statistics"]
    assert client.get_server_metadata()["extensions"] == extensions
    assert client.get_model_metadata("digits")["versions"] == ["tiny", "big"]


def test_configuration(client: Any) -> None:
    config = client.get_model_config("digits", "tiny")
    assert config == {
        "name": "digits",
        "platform": "inferway",
        "backend": "",
        "version_policy": {"all": {}},
        "max_batch_size": 64,
        "input": [{"name": "image", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "scores", "data_type": "TYPE_FP32", "dims": [3]}],
        "instance_group": [{"name": "digits/tiny", "kind": "KIND_MODEL", "count": 1}],
        "parameters": {
            "accuracy": {"string_value": "0.7"},
            "accuracy_target": {"string_value": "0.8"},
        },
    }
    both = client.get_model_config("digits")
    assert [one["name"] for one in both["instance_group"]] == ["digits/tiny", "digits/big"]
    assert "accuracy" not in both["parameters"]
    with pytest.raises(InferenceServerException, match="no variant 'huge'"):
        client.get_model_config("digits", "huge")


def test_statistics(client: Any) -> None:
    def counts(version: str = "") -> Any:
        return [
            (
                one["version"],
                one["inference_count"],
                one["execution_count"],
                one["inference_stats"]["success"]["count"],
                {run["batch_size"]: run["compute_infer"]["count"] for run in one["batch_stats"]},
            )
            for one in client.get_inference_statistics("digits", version)["model_stats"]
        ]

    before = {name: rest for name, *rest in counts()}
    client.infer("digits", [_input(2, True)], model_version="big")
    ((name, rows, runs, requests, sizes),) = counts("big")
    was_rows, was_runs, was_requests, was_sizes = before["big"]
    assert (name, rows, runs, requests) == ("big", was_rows + 2, was_runs + 1, was_requests + 1)
    assert sizes == was_sizes | {2: was_sizes.get(2, 0) + 1}
    assert [name for name, *_ in counts()] == ["tiny", "big"]
    assert client.get_inference_statistics() == client.get_inference_statistics("digits")
    with pytest.raises(InferenceServerException, match="unknown task 'other'"):
        client.get_inference_statistics("other")


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("named", [None, True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_infer(client: Any, binary: bool, named: bool | None, compression: str | None) -> None:
    outputs = None
    if named is not None:
        outputs = [tritonclient.http.InferRequestedOutput("scores", binary_data=named)]
    result = client.infer(
        "digits",
        [_input(3, binary)],
        outputs=outputs,
        request_id="a-7",
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    assert result.as_numpy("scores").shape == (3, 3)
    assert result.as_numpy("scores").dtype == np.float32
    response = result.get_response()
    assert (response["id"], response["model_name"]) == ("a-7", "digits")
    assert response["model_version"] == response["parameters"]["variant"] == "tiny"
    assert set(response["parameters"]) == {
        "variant",
        "latency_ms",
        "predicted_latency_ms",
        "accuracy_balance",
    }
    in_binary = "binary_data_size" in response["outputs"][0].get("parameters", {})
    assert in_binary == (named is not False)


def test_large_answers_come_compressed(client: Any) -> None:
    result = client.infer("digits", [_input(500, True)], response_compression_algorithm="gzip")
    assert result.as_numpy("scores").shape == (500, 3)


def test_pinning_does_not_move_the_balance(client: Any) -> None:
    def ask(**options: Any) -> dict[str, Any]:
        response: dict[str, Any] = client.infer(
            "digits", [_input(2, True)], **options
        ).get_response()
        return response

    before = ask()
    pinned = ask(model_version="big")
    after = ask()
    assert pinned["model_version"] == "big"
    balances = [one["parameters"]["accuracy_balance"] for one in (before, pinned, after)]
    assert balances[1] == balances[0]
    assert balances[2] == pytest.approx(balances[0] + 2 * (0.7 - 0.8))


def test_errors_carry_the_reason(client: Any) -> None:
    wrong = tritonclient.http.InferInput("image", [1, 5], "FP32")
    wrong.set_data_from_numpy(np.zeros((1, 5), np.float32))
    with pytest.raises(InferenceServerException, match=r"shape \[1, 5\], expected \[-1, 4\]"):
        client.infer("digits", [wrong])
    with pytest.raises(InferenceServerException, match="unknown task 'other'"):
        client.infer("other", [_input(1, True)])
