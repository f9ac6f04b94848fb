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
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    assert client.get_model_metadata("digits")["versions"] == ["tiny", "big"]


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
