"""What comes whole is read in one step, and means what it means to the parser in pieces."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from neighbor import LIMIT_S, Neighbor, Visit

from inferway.live.headroom import Bodies
from inferway.live.http.connection import Listener
from inferway.live.http.exchange import JSON, Exchange, Limits, whole
from inferway.live.request import NodeCondition
from inferway.live.upstream.headers import (
    Response,
    ResponseHeaders,
    forward_head,
    target_of,
)
from inferway.live.upstream.upstream import Upstream

BODY = b'{"inputs": []}\r\n\r\n\x00\xff'
NAMES = b"X-Request-Id: mine\r\ntraceparent: 00-1-2-01\r\n"
STATE = b"tracestate: b=2 , a@x=1 2\r\n"
KINDS = b"Content-Type: application/json; charset=utf-8\r\nContent-Encoding: gzip\r\n"
REST = b"Inference-Header-Content-Length: 4\r\nAccept-Encoding: gzip, br\r\n"
SEEN = (
    "body",
    "headed",
    "headers",
    "keep_alive",
    "method",
    "size",
    "target",
)


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        asyncio.run(main)

    return to_its_end


def written(carried: bytes = NAMES, left_s: float = math.inf, body: bytes = BODY) -> bytes:
    target = target_of("task", "::1", 8003)
    address = b"cloud", b"ti%20ny"
    return forward_head(target, address, b"edge,m", left_s, 0.0, carried, len(body)) + body


ODD = {
    "another order": written()
    .replace(b"Inferway-Node: cloud\r\n", b"")
    .replace(b"X-Request", b"Inferway-Node: cloud\r\nX-Request"),
    "another header": written(NAMES + b"X-Else: 1\r\n"),
    "another case": written().replace(b"Inferway-Path", b"inferway-path"),
    "spaces around": written().replace(b"Id: mine", b"Id:   mine "),
    "a state in two lines": written(NAMES + STATE + b"tracestate: c=3\r\n"),
    "a state without a parent": written(STATE),
    "closing": written(b"Connection: close\r\n"),
    "in chunks": written(b"Transfer-Encoding: chunked\r\n", body=b"2\r\nab\r\n0\r\n\r\n").replace(
        b"Content-Length: 12\r\n", b""
    ),
    "none of a neighbor": b"POST /v2/models/task/infer HTTP/1.1\r\nHost: a\r\n"
    b"Content-Length: 2\r\n\r\nab",
}


async def exchanged(
    pieces: list[bytes], limits: Limits | None = None, bodies: Bodies | None = None
) -> tuple[Any, bytes]:
    """What a listener for hops makes of a request, and its answer."""
    seen: list[tuple[bytes, dict[str, Any]]] = []
    errors: list[BaseException] = []

    def find(method: bytes, target: bytes) -> Any:
        def handle(exchange: Exchange) -> None:
            hops = exchange.hops()
            exchange.unfold()
            exchange.headers.pop(b"host", None)  # the parser alone needs it
            assert hops == exchange.hops()
            seen.append((target, {name: getattr(exchange, name) for name in SEEN}))
            exchange.respond(200, b"ok")

        return handle

    listener = Listener(find, errors.append, limits, bodies=bodies, hops=True)
    await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    for piece in pieces:
        (one,) = listener.connections or (None,)
        writer.write(piece)
        if piece is not pieces[-1]:
            # The next piece is written once this one has been read.
            async with asyncio.timeout(LIMIT_S):
                while one is None or one._current is None:
                    await asyncio.sleep(0.001)
                    (one,) = listener.connections or (None,)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT_S)
    writer.close()
    await writer.wait_closed()
    listener.close()
    listener.abort()
    assert errors == []
    return (seen[0] if seen else None), head


@pytest.mark.parametrize("left_s", [math.inf, 0.25])
@pytest.mark.parametrize(
    "carried",
    [
        b"",
        NAMES,
        b"Inferway-Predicted-Ms: 10.000\r\n" + NAMES + KINDS,
        NAMES + KINDS,
        KINDS,
        NAMES + KINDS + REST,
        NAMES + STATE,
        NAMES + STATE + REST,
    ],
    ids=len,
)
def test_a_request_that_is_whole_is_what_it_is_in_pieces(
    run: Any, carried: bytes, left_s: float
) -> None:
    async def main() -> None:
        request = written(carried, left_s)
        assert whole(request) is not None
        assert await exchanged([request]) == await exchanged([request[:20], request[20:]])

    run(main())


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_anything_else_is_the_parsers(run: Any, odd: bytes) -> None:
    async def main() -> None:
        assert whole(odd) is None
        seen, head = await exchanged([odd])
        assert seen is not None
        assert (seen, head) == await exchanged([odd[:20], odd[20:]])

    run(main())


@pytest.mark.parametrize("cut", [1, 200, -1])
def test_a_request_that_is_not_whole_or_more_than_one_is_the_parsers(cut: int) -> None:
    request = written()
    assert whole(request[:cut]) is None
    assert whole(request + request[:cut]) is None
    assert whole(request + request) is None


def test_several_requests_in_turn_whole_and_in_pieces(run: Any) -> None:
    async def main() -> None:
        targets: list[Any] = []

        def find(method: bytes, target: bytes) -> Any:
            def handle(exchange: Exchange) -> None:
                targets.append(exchange.body)
                exchange.respond(200, exchange.body)  # type: ignore[arg-type]

            return handle

        listener = Listener(find, targets.append, hops=True)
        await listener.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        bodies = [b"%d" % i for i in range(12)]
        for i in range(0, 12, 3):
            writer.write(written(body=bodies[i]))
            answers = [await reader.readuntil(b"\r\n\r\n" + bodies[i])]
            both = written(body=bodies[i + 1]) + written(KINDS, body=bodies[i + 2])
            writer.write(both)
            answers.append(await reader.readuntil(b"\r\n\r\n" + bodies[i + 2]))
        assert targets == bodies
        writer.close()
        await writer.wait_closed()
        listener.close()
        listener.abort()

    run(main())


@pytest.mark.parametrize(
    ("limits", "status"),
    [(Limits(body_bytes=len(BODY) - 1), b"413"), (Limits(head_bytes=100), b"431")],
)
def test_limits_hold_for_what_comes_whole(run: Any, limits: Limits, status: bytes) -> None:
    async def main() -> None:
        seen, head = await exchanged([written()], limits)
        assert seen is None
        assert head.startswith(b"HTTP/1.1 " + status)

    run(main())


def answered(extra: bytes = b"", kind: bytes = JSON, body: bytes = BODY) -> bytes:
    lines = ResponseHeaders(NodeCondition("cloud")).own(
        b"edge,metro", 1e-3, "ti ny", unserved=False
    )
    return b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s%s\r\n%s" % (
        kind,
        len(body),
        lines,
        extra,
        body,
    )


FIELDS = (
    *("status", "kind", "body", "lines", "json_length", "retry_after", "node", "variant"),
    *("path", "times", "degraded", "unserved", "strayed"),
)


def fields(answer: Response) -> list[Any]:
    return [getattr(answer, name) for name in FIELDS]


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        (answered(), True),
        (answered(b"Inference-Header-Content-Length: 3\r\n", b"application/octet-stream"), True),
        (answered(body=b""), True),
        (answered(b"Vary: Accept-Encoding\r\nContent-Encoding: gzip\r\n"), True),
        (answered(b"Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n"), False),
        (answered(b"Inferway-Degraded: no way\r\n"), False),
        (answered(b"Connection: close\r\n"), False),
        (answered().replace(b"200 OK", b"503 Service Unavailable"), False),
        (answered().replace(b"200 OK", b"200 All right"), False),
    ],
)
def test_an_answer_that_is_whole_is_what_it_is_in_pieces(run: Any, raw: bytes, plain: bool) -> None:
    async def main() -> None:
        pieces = [[raw], [raw[:30], raw[30:]]]

        async def script(visit: Visit) -> None:
            first, *others = pieces.pop(0)
            visit.answer(first)
            for piece in others:
                (wire,) = hop._busy
                while not wire.begun:
                    await asyncio.sleep(0.001)
                visit.answer(piece)

        neighbor = await Neighbor(script).start()
        hop = Upstream("metro", "127.0.0.1", neighbor.port)
        found = []
        for _ in range(2):
            ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            hop.send(written(body=b""), b"", ended.set_result)
            found.append(await asyncio.wait_for(ended, LIMIT_S))
        assert fields(found[0]) == fields(found[1])
        assert hop.opened == (2 if b"Connection: close" in raw else 1)
        assert (Response.whole(raw) is not None) is plain
        assert Response.whole(raw[:-1]) is None
        assert Response.whole(raw + b"x") is None
        hop.close()
        await neighbor.stop()

    run(main())


def test_what_a_node_passes_on_is_still_whole() -> None:
    line = b"Inference-Header-Content-Length: 3\r\n"
    answer = Response.whole(answered(line))
    assert answer is not None
    lines = ResponseHeaders(NodeCondition("metro")).passed(answer, b"edge", 2e-3)
    assert lines.endswith(b"Inferway-Variant: ti%20ny\r\n" + line)
    again = b"HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nContent-Length: 0\r\n" + lines + b"\r\n"
    assert Response.whole(again) is not None


_HOST = b"Host: [::1]:8003\r\n"


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        (_HOST, b"", b"400"),
        (_HOST, _HOST + b"Host: else\r\n", b"400"),
        (_HOST, b"Host: cloud/8003\r\n", b"400"),
        (b"Content-Length: 20\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"501"),
        (b"POST /v2/models/task/infer", b"CONNECT cloud:8003", b"405"),
    ],
)
def test_framing_is_held_between_nodes_too(
    run: Any, before: bytes, after: bytes, status: bytes
) -> None:
    async def main() -> None:
        request = written()
        assert before in request
        seen, head = await exchanged([request.replace(before, after)])
        assert seen is None
        assert head.startswith(b"HTTP/1.1 " + status)

    run(main())


def test_bodies_between_nodes_count_too(run: Any) -> None:
    async def main() -> None:
        bodies = Bodies(len(BODY) + 9)
        request = written()
        for pieces in ([request], [request[:-4], request[-4:]]):
            seen, _ = await exchanged(pieces, bodies=bodies)
            assert seen is not None
            assert bodies.held == 0
        assert bodies.reserve(10)  # somebody else's
        seen, head = await exchanged([request], bodies=bodies)
        assert seen is None
        assert head.startswith(b"HTTP/1.1 503")
        # So that it is given to another node.
        assert b"\r\nInferway-Unserved: 1\r\n" in head
        assert b"\r\nRetry-After: 1\r\n" in head
        assert bodies.held == 10

    run(main())
