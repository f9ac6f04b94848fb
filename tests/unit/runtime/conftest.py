"""A server that misbehaves when told to, and the model behind it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from inferway.protocol.address import parse_model
from inferway.runtime import RemoteRuntime
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


@pytest.fixture
def remote_of() -> Iterator[Callable[..., RemoteRuntime]]:
    """Make runtimes for a server's model, and close them."""
    made: list[RemoteRuntime] = []

    def make(server: Scripted, **options: Any) -> RemoteRuntime:
        made.append(RemoteRuntime(parse_model(server.url), **({"timeout_s": 5.0} | options)))
        return made[-1]

    yield make
    for runtime in made:
        runtime.close()
