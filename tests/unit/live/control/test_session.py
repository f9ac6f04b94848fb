from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from inferway.live.control.session import KeyExpressions, settings
from inferway.live.security.tls import Credentials

SURE = Credentials.of("edge", Path("certs"))


def endpoints(listen: str, neighbor: str, credentials: Credentials | None) -> Any:
    """Where a node listens, and what it connects to."""
    text = settings(
        KeyExpressions("net", "edge"),
        listen,
        {"cloud": neighbor, "leaf": None},
        credentials,
        lease_s=1.0,
        limit_bytes=1,
    )
    said = json.loads(text)
    return said["listen"]["endpoints"], said["connect"]["endpoints"]


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "[::1]:1", "0.0.0.0:1", "edge.invalid:1"])
def test_a_node_listens_and_connects_at_addresses(listen: str) -> None:
    assert endpoints(listen, "[fd00::7]:2", None) == ([f"tcp/{listen}"], ["tcp/[fd00::7]:2"])


def test_servers_names_have_no_brackets() -> None:
    assert endpoints("[::1]:1", "[fd00::7]:2", SURE) == (["tls/[::1]:1"], ["tls/fd00::7:2"])
    assert endpoints("[::1]:1", "cloud.lan:2", SURE) == (["tls/[::1]:1"], ["tls/cloud.lan:2"])


def test_a_name_is_listened_at_with_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = socket.getaddrinfo

    def several(host: str, *args: Any, **options: Any) -> Any:
        assert host == "edge.lan"
        return [
            one
            for address in ("127.0.0.1", "::1", "127.0.0.1")
            for one in ask(address, *args, **options)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", several)
    listening, _ = endpoints("edge.lan:1", "cloud:2", SURE)
    assert listening == ["tls/127.0.0.1:1", "tls/[::1]:1"]
