"""More over gRPC than a server may hold: without a key, beyond the sum, on too many connections."""

from __future__ import annotations

import gzip
import json
import re
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from tritonclient.grpc.service_pb2 import ModelInferRequest

from inferway.live import Keys, Limits
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime

KEY = "a-key-of-enough-length"
LIMIT_S = 60.0
MIB = 1024**2
INFER = "/inference.GRPCInferenceService/ModelInfer"
FILE = """
tasks:
  digits: {variants: {tiny: {model: zoo://digits/tiny}}}
"""
FULL = "the messages of all calls have no room for this one now"


class Serving(NamedTuple):
    """A server in a process of its own."""

    port: int
    process: int

    def peak(self) -> int:
        """The most resident memory since it was last forgotten, bytes."""
        status = Path(f"/proc/{self.process}/status").read_text()
        (size,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        return int(size) * 1024

    def forget(self) -> int:
        """Begin to look for the peak anew; return what is resident."""
        Path(f"/proc/{self.process}/clear_refs").write_text("5")
        return self.peak()


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Serving]:
    """Run `inferway serve` with keys, to end with 0 and without a word."""
    (folder / "digits.yaml").write_text(FILE)
    (folder / "keys").write_text(f"{KEY}\n")
    command = [sys.executable, "-m", "inferway", "serve", "digits.yaml", "--keys", "keys", "--json"]
    command += ["--http-port", "0", "--admin-port", "0", "--log-level", "error", "--forget"]
    with subprocess.Popen(
        [*command, *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, process.communicate(timeout=10)[1]
            yield Serving(json.loads(line)["grpc_port"], process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, rest, errors) == (0, "", "")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with served(tmp_path_factory.mktemp("floods"), "--max-bodies", "128") as one:
        yield one


def request(size: int) -> bytes:
    """A request of about so many bytes, whose shape is no image's."""
    message = ModelInferRequest(model_name="digits")
    message.inputs.add(name="image", datatype="FP32", shape=[size // 4])
    message.raw_input_contents.append(bytes(size // 4 * 4))
    packed: bytes = message.SerializeToString()
    return packed


def flood(
    port: int,
    method: str,
    message: bytes,
    *,
    count: int,
    key: str = "",
    compression: grpc.Compression | None = None,
) -> Counter[Any]:
    """Send a message by so many calls at once, each on a connection of its own."""
    metadata = [("authorization", f"Bearer {key}")] if key else []
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    found: Counter[Any] = Counter()
    with ExitStack() as stack:
        channels = [
            stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}", options))
            for _ in range(count)
        ]
        calls = [
            channel.unary_unary(method).future(
                message, metadata=metadata, timeout=LIMIT_S, compression=compression
            )
            for channel in channels
        ]
        for call in calls:
            error: Any = call.exception()
            found["answered" if error is None else (error.code().name, error.details())] += 1
    return found


@pytest.mark.parametrize(
    ("method", "end"),
    [
        (INFER, "UNAUTHENTICATED"),
        ("/inference.GRPCInferenceService/ModelMetadata", "UNAUTHENTICATED"),
        ("/inference.GRPCInferenceService/ServerReady", "answered"),
        ("/grpc.health.v1.Health/Check", "INVALID_ARGUMENT"),
    ],
)
def test_messages_without_a_key_are_not_taken_in(serving: Serving, method: str, end: str) -> None:
    before = serving.forget()
    found = flood(serving.port, method, bytes(60 * MIB), count=12)
    assert {one if one == "answered" else one[0] for one in found} == {end}
    # It was 90 MiB a call.
    assert serving.peak() - before < 200 * MIB


def test_messages_together_have_a_limit(serving: Serving) -> None:
    before = serving.forget()
    for _ in range(5):  # on a busy machine, calls may come one after the other
        found = flood(serving.port, INFER, request(40 * MIB), count=24, key=KEY)
        refused = found.pop(("UNAVAILABLE", FULL), 0)
        if refused > 6:
            break
    assert refused > 6
    # What found room was looked at.
    assert {code for code, _ in found} == {"INVALID_ARGUMENT"}
    assert refused + found.total() == 24
    # It was 2 GiB. Beside what counts there are a message's copies, and what came before a look.
    assert serving.peak() - before < 900 * MIB
    # There is room again.
    (end,) = flood(serving.port, INFER, request(60 * MIB), count=1, key=KEY)
    assert end[0] == "INVALID_ARGUMENT"


def test_packed_messages_are_not_unpacked_whatever_they_hold(serving: Serving) -> None:
    packed = gzip.compress(request(60 * MIB))
    assert len(packed) < 65_000  # what may be sent before the server says more
    before = serving.forget()
    with ExitStack() as stack:
        streams = [
            stack.enter_context(closing(Stream(serving.port, key=KEY, packed=packed)))
            for _ in range(24)
        ]
        for stream in streams:
            stream.wait()
    # It was some 320 MiB; how many are looked at together is up to the machine.
    assert serving.peak() - before < 260 * MIB


def test_messages_may_not_unpack_to_what_measured_values_never_do(serving: Serving) -> None:
    found = flood(
        serving.port, INFER, request(40 * MIB), count=1, key=KEY, compression=grpc.Compression.Gzip
    )
    reason = "the body unpacks to more than 100 times its size; send it unpacked"
    assert found == {("INVALID_ARGUMENT", reason): 1}


def test_connections_have_a_limit(tmp_path: Path, until: Callable[..., None]) -> None:
    with served(tmp_path, "--max-connections", "3") as one, ExitStack() as stack:
        kept = [
            stack.enter_context(closing(Stream(one.port, key=KEY, announced=MIB))) for _ in range(3)
        ]
        assert all(stream.settled() for stream in kept)
        assert not stack.enter_context(closing(Stream(one.port))).settled()
        kept[0].close()

        def again() -> bool:
            with closing(Stream(one.port)) as stream:
                return stream.settled()

        until(again)  # the server has to see it go


class Stream:
    """A connection with a call whose message comes in pieces, frame by frame (RFC 9113, 7541)."""

    def __init__(
        self, port: int, *, key: str = "", announced: int = 0, packed: bytes = b""
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        self._left = announced
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": INFER,
            ":authority": "test",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        if key:
            fields["authorization"] = f"Bearer {key}"
        block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
        if announced:
            head = struct.pack(">BI", 0, announced)
            self.socket.sendall(_frame(1, 4, 1, block) + _frame(0, 0, 1, head))
        if packed:  # a whole message
            block += b"\0" + _text("grpc-encoding") + _text("gzip")
            head = struct.pack(">BI", 1, len(packed))
            self.socket.sendall(_frame(1, 4, 1, block) + _frame(0, 0, 1, head))
            for start in range(0, len(packed), 16384):
                piece = packed[start : start + 16384]
                last = start + 16384 >= len(packed)
                self.socket.sendall(_frame(0, int(last), 1, piece))

    def settled(self) -> bool:
        """Whether the server takes the connection: it sends its settings."""
        try:
            return self.socket.recv(9)[3:4] == b"\x04"
        except ConnectionError:
            return False

    def send(self, size: int) -> None:
        """Send a piece of the message; as much as the server lets in must be known."""
        self._left -= size
        while size > 0:
            self.socket.sendall(_frame(0, 0, 1, bytes(min(size, 16384))))
            size -= 16384

    def wait(self) -> None:
        """Read frames until one ends the call."""
        with self.socket.makefile("rb") as frames:
            while head := frames.read(9):
                frames.read(int.from_bytes(head[:3]))
                if head[3] == 1 and head[4] & 1:
                    return
        raise AssertionError("the connection ended before the call")

    def cut(self) -> bool:
        """Whether the server ends the connection, after what it had sent."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(text: str) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()


def test_slow_messages_count_what_has_come(
    start: Callable[..., Any], site_of: Callable[..., Any], until: Callable[..., None]
) -> None:
    running = start(site_of(), keys=Keys([KEY]), grpc_port=0, limits=Limits(bodies_bytes=MIB))
    server, endpoint = running.server, running.server._grpc
    with ExitStack() as stack:
        # Each has announced all that one may have, and more than all may.
        slow = [
            stack.enter_context(closing(Stream(server.grpc_port, key=KEY, announced=60 * MIB)))
            for _ in range(12)
        ]
        until(lambda: len(endpoint._traffic._arriving) == len(slow))
        for stream in slow:
            stream.send(32 * 1024)
        until(lambda: 12 * 32 * 1024 <= server.bodies.held < 12 * 34 * 1024)
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            small = ModelInferRequest(model_name="digits")
            small.inputs.add(name="image", datatype="FP32", shape=[1, 4])
            small.raw_input_contents.append(bytes(16))
            call = channel.unary_unary(INFER)
            metadata = [("authorization", f"Bearer {KEY}")]
            assert call(small.SerializeToString(), metadata=metadata, timeout=LIMIT_S)
        for stream in slow[:4]:
            for _ in range(15):
                stream.send(32 * 1024)
        # Some found no room.
        until(lambda: len(endpoint._traffic._arriving) < len(slow))
        assert server.bodies.held <= MIB
    until(lambda: server.bodies.held == 0)


@pytest.mark.parametrize(
    ("limits", "cut"),
    [(Limits(receive_s=1, read_rate=1024**3), 3), (Limits(bodies_bytes=9 * MIB), 1)],
    ids=["late", "together"],
)
def test_answers_that_are_not_read_are_bounded(
    start: Callable[..., Any],
    site_of: Callable[..., Any],
    until: Callable[..., None],
    limits: Limits,
    cut: int,
) -> None:
    double = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
    running = start(
        site_of([NullRuntime(double)] * 2, signature=double), grpc_port=0, limits=limits
    )
    endpoint = running.server._grpc
    large = ModelInferRequest(model_name="digits")
    large.inputs.add(name="x", datatype="FP32", shape=[MIB // 2, 2])
    large.raw_input_contents.append(bytes(4 * MIB))
    packed = gzip.compress(large.SerializeToString())
    with ExitStack() as stack:
        streams = []
        for number in range(3):
            streams.append(
                stack.enter_context(closing(Stream(running.server.grpc_port, packed=packed)))
            )
            until(lambda: len(endpoint._traffic.unread) >= min(number + 1, 2))  # noqa: B023
        until(lambda: len(endpoint._traffic.unread) == 3 - cut)
        for stream in streams if cut == 3 else ():
            assert stream.cut()
    until(lambda: not endpoint._traffic.unread)
    assert running.server.bodies.held == 0
