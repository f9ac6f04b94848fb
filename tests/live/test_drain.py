"""How a server ends: not ready but serving, then finishing, then gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

ONE = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]
}
READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n\r\n"


@pytest.fixture
def draining(start: Any, site_of: Any, gates: Any, patient: Any) -> Any:
    """A warm server on a clock that stands, and what becomes of it when it is asked to end."""
    for gate in gates:
        gate.opened.set()
    running = start(site_of(gates), loop=patient, drain_delay_s=2.0, grace_s=10.0)
    for gate in gates:
        gate.opened.clear()
    running.ended = running.begin(running.server.ended())
    yield running
    for gate in gates:
        gate.opened.set()
    running.call(lambda: running.server.end(delay=False))
    _let(running, 20.0)
    running.ended.result(20)


def _let(running: Any, by_s: float) -> None:
    """Let time pass until nothing is left to do at that time."""
    running.loop.advance(by_s)
    for _ in range(5):
        running.call(lambda: None)


def _refuses(running: Any) -> bool:
    try:
        socket.create_connection(("127.0.0.1", running.server.http_port), 5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_not_ready_but_serving_for_the_delay(draining: Any, gates: Any, until: Any) -> None:
    draining.call(draining.server.end)
    until(lambda: draining.get("/v2/health/ready").status == 503)
    assert draining.get("/v2/health/live").status == 200
    gates[0].opened.set()
    _let(draining, 1.9)
    assert draining.infer(ONE).status == 200
    assert not draining.ended.done()
    _let(draining, 0.2)
    draining.ended.result(20)
    assert _refuses(draining)


def test_idle_connections_do_not_delay_and_busy_ones_finish(
    draining: Any, gates: Any, until: Any
) -> None:
    idle, busy = draining.wire(), draining.wire()
    idle.send(READY)
    assert idle.read().status == 200
    busy.send(draining.post(ONE))
    until(lambda: draining.site.in_flight == 1)
    draining.call(lambda: draining.server.end(delay=False))
    assert idle.closed()
    assert _refuses(draining)
    _let(draining, 9.9)
    assert not draining.ended.done()
    gates[0].opened.set()
    answer = busy.read()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    until(lambda: _let(draining, 0.1) is None and draining.ended.done())


def test_the_grace_period_is_the_end(draining: Any, until: Any) -> None:
    idle, busy = draining.wire(), draining.wire()
    busy.send(draining.post(ONE))
    until(lambda: draining.site.in_flight == 1)
    draining.call(lambda: draining.server.end(delay=False))
    assert idle.closed()
    _let(draining, 10.1)
    draining.ended.result(20)
    with pytest.raises(ConnectionError):
        busy.read()


def test_each_further_signal_moves_on(draining: Any, until: Any) -> None:
    idle, busy = draining.wire(), draining.wire()
    busy.send(draining.post(ONE))
    until(lambda: draining.site.in_flight == 1)
    draining.call(draining.server.end)
    until(lambda: not draining.server.ready)
    idle.send(READY)
    assert idle.read().status == 503
    draining.call(draining.server.end)
    assert idle.closed()
    assert not draining.ended.done()
    draining.call(draining.server.end)
    until(lambda: _let(draining, 0.01) is None and draining.ended.done())


_PROGRAM = """
import json
import numpy as np
from inferway.dispatch import Dispatcher
from inferway.live import Pool, Server, ServerOptions, TaskSite
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import Fleet

signature = Signature(
    (Tensor("image", "FP32", (-1, 4)),), (Tensor("scores", "FP32", (-1, 3)),)
)
fleet = Fleet(("tiny",), np.array([10.0]), np.array([0.7]), np.array([1]))
dispatcher = Dispatcher(fleet, "fastest-only", target=None)
site = TaskSite.of(Pool("digits", signature, dispatcher, [NullRuntime(signature, service_s=0.3)]))
Server([site], ServerOptions(http_port=0, admin_port=0, drain_delay_s=DELAY)).run(
    lambda server: print(json.dumps(server.http_port), flush=True)
)
"""


@pytest.mark.parametrize(
    ("number", "delay_s", "events"),
    [
        (signal.SIGTERM, 0.05, ["ready", "draining", "stopped"]),
        # Ctrl-C does not wait for load balancers.
        (signal.SIGINT, 3600.0, ["ready", "stopped"]),
    ],
)
def test_a_signal_ends_the_process_cleanly(number: int, delay_s: float, events: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.replace("DELAY", str(delay_s))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONWARNINGS": "error"},
    )
    try:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())
        body = json.dumps(ONE).encode()
        with socket.create_connection(("127.0.0.1", port), 20) as connection:
            path = "/v2/models/digits/versions/tiny/infer"
            head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            connection.sendall(head.encode() + body)
            process.send_signal(number)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")
        _, log = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert b"Traceback" not in log
    assert [json.loads(line)["event"] for line in log.splitlines()] == events
