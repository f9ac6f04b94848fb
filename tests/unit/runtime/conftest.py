"""A server that misbehaves when told to, the model behind it, and classes of a user."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from own_classes import Heard, Make

from inferway.protocol import Signature
from inferway.protocol.address import parse_model
from inferway.runtime import BlockingRemote, PythonCode, PythonRuntime, RemoteRuntime
from scripted import Scripted


@pytest.fixture
def serve() -> Iterator[Callable[..., Scripted]]:
    """Start servers, and stop them after the test."""
    servers: list[Scripted] = []

    def start(**options: Any) -> Scripted:
        servers.append(Scripted(**options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def upstream(serve: Callable[..., Scripted]) -> Scripted:
    return serve()


class Remote(BlockingRemote):
    """A model behind a server, on one loop from the first call to the last."""

    @property
    def connections(self) -> Any:
        """Those of its loop."""
        return self.remote._made[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.remote, name)


@pytest.fixture
def remote_of() -> Iterator[Callable[..., Remote]]:
    """Make models of a server, and close them."""
    made: list[Remote] = []

    def make(server: Scripted, **options: Any) -> Remote:
        address = parse_model(server.url)
        made.append(Remote(RemoteRuntime(address, **({"timeout_s": 5.0} | options))))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def log() -> Heard:
    return Heard()


@pytest.fixture
def make(tmp_path: Path, log: Heard) -> Iterator[Make]:
    """Write a class's file, and make its runtime."""
    with ExitStack() as stack:

        def maker(
            body: str, *, signature: Signature | None = None, before: str = "", **options: Any
        ) -> PythonRuntime:
            path = tmp_path / "mine.py"
            head = textwrap.dedent(before)
            inner = textwrap.indent(textwrap.dedent(body), "    ")
            path.write_text(
                f"import os, sys, time\nimport numpy as np\n{head}\nclass Model:\n{inner}"
            )
            code = replace(PythonCode(path, "Model", tmp_path), **options)
            runtime = stack.enter_context(
                closing(PythonRuntime(code, signature=signature, log=log))
            )
            stack.callback(runtime.wait)
            stack.callback(runtime.close)
            return runtime

        yield maker
