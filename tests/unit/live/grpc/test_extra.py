"""What happens where the extra `grpc` is not installed, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


def test_the_server_does_not_import_grpc_by_itself() -> None:
    code = (
        "import sys, inferway.live, inferway.live.grpc\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('grpc', 'google')])"
    )
    assert run(code) == "[]\n"


@pytest.mark.parametrize("missing", ["grpc", "google.protobuf"])
def test_without_the_extra_one_sentence_says_so(missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
from inferway.live import ServeError
from inferway.live.grpc import endpoint_class
try:
    endpoint_class()
except ServeError as error:
    print(error)
"""
    assert run(code) == (
        "gRPC needs grpcio and protobuf, which are not installed: "
        "pip install 'inferway[grpc]', or serve without gRPC\n"
    )


def test_another_missing_module_is_not_blamed_on_the_extra() -> None:
    code = """
import sys
sys.modules["inferway.live.grpc.health"] = None
from inferway.live.grpc import endpoint_class
try:
    endpoint_class()
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert run(code) == "inferway.live.grpc.health\n"
