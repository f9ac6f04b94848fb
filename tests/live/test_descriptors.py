"""A server that runs out of file descriptors says so, serves on, and accepts again."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from prepared import limited, prepared

ASK = b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n"
LIMIT = 64

_PROGRAM = """
import json
from inferway.live import Server, ServerOptions
Server((), ServerOptions(http_port=0, admin_port=0, drain_delay_s=0.0)).run(
    lambda server: print(json.dumps(server.http_port), flush=True)
)
"""


def test_running_out_of_descriptors_is_said_and_survived(tmp_path: Path, until: Any) -> None:
    log = tmp_path / "log"
    with log.open("wb") as written:
        server = subprocess.Popen(
            prepared(limited("RLIMIT_NOFILE", LIMIT), sys.executable, "-c", _PROGRAM),
            stdout=subprocess.PIPE,
            stderr=written,
        )
    wires: list[socket.socket] = []

    def connect() -> socket.socket:
        assert server.stdout is not None
        wires.append(socket.create_connection(("127.0.0.1", port), 20))
        return wires[-1]

    def lines(part: str) -> list[dict[str, Any]]:
        said = [json.loads(line) for line in log.read_text().splitlines()]
        return [line for line in said if part in line["event"]]

    def answered(wire: socket.socket) -> bool:
        try:
            wire.sendall(ASK)
            return wire.recv(65536).startswith(b"HTTP/1.1 200")
        except ConnectionError:
            return False

    try:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())
        first = connect()
        assert answered(first)
        until(lambda: connect() and len([*Path(f"/proc/{server.pid}/fd").iterdir()]) >= LIMIT)
        for _ in range(20):
            connect()
        until(lambda: bool(lines("no file descriptor")))
        # Those who are connected are served, at once; others are dropped, and it is said once.
        assert answered(first)
        assert not all(answered(wire) for wire in wires)
        (said,) = lines("no file descriptor")
        assert (said["level"], said["limit"]) == ("error", LIMIT)
        for wire in wires:
            wire.close()
        until(lambda: answered(connect()))
        until(lambda: bool(lines("again")))
        server.terminate()
        assert server.wait(60) == 0
        assert len(lines("no file descriptor")) == 1
    finally:
        for wire in wires:
            wire.close()
        server.kill()
        server.communicate()
