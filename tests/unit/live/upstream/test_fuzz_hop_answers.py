"""A neighbor's answers, read by a hop: its headers stay lines, and its faults words."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from fuzzed import HTTP_TOKENS
from fuzzing import Course, few_or_many
from inferway.live.request import NodeCondition
from inferway.live.upstream.headers import Response, ResponseHeaders
from inferway.protocol.http1 import ClientConnection
from mutation import respelled

ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n"
    b"Inferway-Node: cloud\r\nInferway-Path: edge,cloud\r\nInferway-Time-Ms: 4.00,2.00\r\n"
    b"Inferway-Variant: tiny\r\nVary: Accept-Encoding\r\nInference-Header-Content-Length: 9\r\n"
    b'\r\n{"error": "no"}'
)
ANSWER_TOKENS = (
    *HTTP_TOKENS,
    *(b"Inferway-Node: ", b"Inferway-Variant: ", b"Inferway-Path: ", b"Inferway-Time-Ms: "),
    *(b"cloud", b"edge", b"tiny", b"a,b,c", b",", b"%C3%A9", b"%", b"%ff", b"n," * 70, b"nan"),
    *(b"-5", b"inf", b"1e400"),
    *(b"HTTP/1.1 503 Busy\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 101 Switch\r\n"),
    *(b"Retry-After: 5\r\n", b"Inferway-Unserved: 1\r\n", b"Inferway-Degraded: x\r\n", b" 204 "),
)


class Pipe:
    """A transport that keeps what is written."""

    def __init__(self, given: socket.socket) -> None:
        self.written = b""
        self.closing = False
        self._socket = given

    def get_extra_info(self, _: str) -> socket.socket:
        return self._socket

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        self.written += b"".join(parts)

    def close(self) -> None:
        self.closing = True

    abort = write_eof = close

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    resume_reading = pause_reading


def take(raw: bytes, choose: random.Random, pipe: Pipe) -> None:
    """Read an answer as one hop does, and say what it says."""
    answers: list[Response] = []
    trail = ResponseHeaders(NodeCondition("edge"))

    def answered(wire: ClientConnection, answer: Response, _: bool) -> None:
        answers.append(answer)
        wire.call = None

    wire = ClientConnection(Response, answered, lambda *_: None)
    wire.connection_made(pipe)  # type: ignore[arg-type]
    wire.call = object()
    at = choose.randrange(len(raw) + 1) if choose.random() < 0.5 else len(raw)
    for piece in (raw[:at], raw[at:]):
        if piece and not pipe.closing:
            wire.data_received(piece)
    wire.connection_lost(None)
    for answer in answers:
        lines = trail.passed(answer, b"edge", 0.01)
        assert b"\n" not in lines.replace(b"\r\n", b"")
        assert "\n" not in answer.complaint("cloud")


def answer(choose: random.Random) -> tuple[bytes, random.Random]:
    """The bytes, and how they come apart."""
    split = random.Random(choose.random())
    if choose.random() < 0.03:
        return choose.randbytes(choose.randrange(200)), split
    return respelled(ANSWER, ANSWER_TOKENS, choose), split


@few_or_many
def test_answers(count: int) -> None:
    ends = socket.socketpair()

    async def feed() -> None:
        Course("hop answers", answer, count).run(lambda one: take(*one, Pipe(ends[0])))

    asyncio.run(feed())
    for end in ends:
        end.close()
