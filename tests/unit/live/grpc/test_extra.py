"""What happens where the extra `grpc` is not installed, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

CODE = """
import json, sys
import inferway.live, inferway.live.grpc
from inferway.live import Server, ServeError
from inferway.live.grpc import endpoint_class

found = {"imported": [m for m in sys.modules if m.split(".")[0] in ("grpc", "google")]}
for missing in ("grpc", "google.protobuf", "inferway.live.grpc.inference"):
    sys.modules[missing] = None
    try:
        endpoint_class()
    except (ServeError, ModuleNotFoundError) as error:
        found[missing] = [type(error).__name__, getattr(error, "name", None), str(error)]
    del sys.modules[missing]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_server_does_not_import_grpc_by_itself(found: dict[str, Any]) -> None:
    assert found["imported"] == []


@pytest.mark.parametrize("missing", ["grpc", "google.protobuf"])
def test_without_the_extra_one_sentence_says_so(found: dict[str, Any], missing: str) -> None:
    kind, _, sentence = found[missing]
    assert kind == "ServeError"
    assert sentence == (
        "gRPC needs grpcio and protobuf, which are not installed: "
        "pip install 'inferway[grpc]', or serve without gRPC"
    )


def test_another_missing_module_is_not_blamed_on_the_extra(found: dict[str, Any]) -> None:
    kind, module, _ = found["inferway.live.grpc.inference"]
    assert (kind, module) == ("ModuleNotFoundError", "inferway.live.grpc.inference")
