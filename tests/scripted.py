"""A small Open Inference Protocol server of Python's own sockets that misbehaves when told to."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

LIMIT_S = 20.0
METADATA = {
    "name": "double",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
}


class Asked(NamedTuple):
    """One request; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class EndError(Exception):
    """Told to end the connection, after some last bytes, in an orderly way or by a reset."""

    def __init__(self, last: bytes = b"", *, reset: bool = False) -> None:
        self.last = last
        self.reset = reset


def response(status: int, body: bytes | dict[str, Any] = b"", headers: str = "") -> bytes:
    """Write a whole HTTP answer; a dict as JSON."""
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Word\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


class Scripted:
    """Serves the model `double`: y = 2 x, x of FP32 and two columns.

    `script`, when set, is asked first, in the thread of the connection; what it returns is sent as
    it is, and None means the ordinary answer. `release` lets those go on that wait in `hang`.
    """

    def __init__(self, *, binary: bool = True, port: int = 0) -> None:
        self.script: Callable[[Asked], bytes | None] | None = None
        self.metadata: dict[str, Any] = METADATA
        self.binary = binary
        self.asked: list[Asked] = []
        self.connections = 0
        self.busy = self.most_busy = 0
        self.released = threading.Event()
        self.entered = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v2/models/double"

    @property
    def open(self) -> int:
        """Connections that nobody has ended."""
        with self._lock:
            return len(self._open)

    @property
    def infers(self) -> list[Asked]:
        return [one for one in self.asked if one.path.endswith("/infer")]

    def hang(self, _: Asked) -> bytes | None:
        """As a script: wait until released, then answer."""
        self.entered.release()
        self.released.wait(LIMIT_S)
        return None

    def drop_idle(self) -> None:
        """End all connections, as a server does that restarts."""
        with self._lock:
            for one in self._open:
                with suppress(OSError):  # the other side has ended it
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self.released.set()
        if not self._accepting.is_alive():
            return
        # Only this wakes a thread that is in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(LIMIT_S)
        self._listener.close()
        self.drop_idle()
        for thread in self._threads:
            thread.join(LIMIT_S)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(connection)
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection.makefile("rb") as stream:
                while True:
                    asked = self._read(stream)
                    if asked is None:
                        break
                    connection.sendall(self._answer(asked))
        except EndError as end:
            with contextlib.suppress(OSError):
                connection.sendall(end.last)
            if end.reset:
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        except OSError:
            pass
        with self._lock:
            self._open.discard(connection)
            connection.close()

    def _read(self, stream: Any) -> Asked | None:
        line = stream.readline().decode()
        if not line:
            return None
        method, path, _ = line.split()
        headers = {}
        while line := stream.readline().decode().strip():
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        return Asked(method, path, headers, stream.read(int(headers.get("content-length", 0))))

    def _answer(self, asked: Asked) -> bytes:
        with self._lock:
            self.asked.append(asked)
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
        try:
            said = None if self.script is None else self.script(asked)
            return said if said is not None else self._ordinary(asked)
        finally:
            with self._lock:
                self.busy -= 1

    def _ordinary(self, asked: Asked) -> bytes:
        if asked.path == "/v2":
            extensions = ["binary_tensor_data"] if self.binary else []
            return response(200, {"name": "scripted", "extensions": extensions})
        if asked.path == "/v2/models/double":
            return response(200, self.metadata)
        if asked.path != "/v2/models/double/infer":
            return response(404, {"error": "no such model"})
        return self._infer(asked)

    def _infer(self, asked: Asked) -> bytes:
        length = asked.headers.get("inference-header-content-length")
        if length is None:
            given = json.loads(asked.body)["inputs"][0]
            x = np.array(given["data"], np.float32).reshape(given["shape"])
        else:
            given = json.loads(asked.body[: int(length)])["inputs"][0]
            x = np.frombuffer(asked.body[int(length) :], "<f4").reshape(given["shape"])
        y = 2 * x
        output: dict[str, Any] = {"name": "y", "datatype": "FP32", "shape": list(y.shape)}
        if length is None:
            return response(200, {"outputs": [output | {"data": y.tolist()}]})
        output["parameters"] = {"binary_data_size": y.nbytes}
        text = json.dumps({"outputs": [output]}).encode()
        headers = f"Inference-Header-Content-Length: {len(text)}\r\n"
        return response(200, text + y.tobytes(), headers)
