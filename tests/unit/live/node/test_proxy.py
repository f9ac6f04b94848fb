from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from neighbor import LIMIT_S, Neighbor, Visit, until

from inferway.deployment.nodes import MAX_HOPS
from inferway.dispatch import Dispatcher
from inferway.live.http.connection import Listener
from inferway.live.node.proxy import Proxy
from inferway.live.options import PoolOptions
from inferway.live.pool import Pool
from inferway.live.request import NodeCondition
from inferway.live.site import TaskSite
from inferway.live.upstream.headers import ResponseHeaders, encoded, forward_headers_of
from inferway.live.upstream.upstream import Upstream
from inferway.protocol import RefusalError, Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import Fleet

BODY = b"\x00\x01not JSON at all\xff"
TO_CLOUD = "Inferway-Node: cloud\r\nInferway-Variant: tiny\r\n"


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        asyncio.run(main)

    return to_its_end


class Peer:
    """A connection to a relay's port, and the relay's way onwards."""

    def __init__(
        self, neighbor: Neighbor, hop: Upstream, reader: Any, writer: Any, seen: list[Any]
    ) -> None:
        self.neighbor, self.hop, self.seen = neighbor, hop, seen
        self.reader, self.writer = reader, writer

    def send(self, headers: str, body: bytes = BODY) -> None:
        head = (
            f"POST /v2/models/task/infer HTTP/1.1\r\nHost: test\r\n{headers}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)

    async def read(self) -> tuple[int, dict[str, str], bytes]:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), LIMIT_S)).decode()
        line, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(line.split()[1]), headers, body

    async def ask(self, headers: str, body: bytes = BODY) -> tuple[int, dict[str, str], bytes]:
        self.send(headers, body)
        return await self.read()


@contextlib.asynccontextmanager
async def metro(script: Any = None) -> AsyncIterator[Peer]:
    """A node that serves nothing and knows one way, to `cloud`, but back to `café`."""
    neighbor = await Neighbor(script).start()
    hop = Upstream("cloud", "127.0.0.1", neighbor.port)
    seen: list[Any] = []
    relay = Proxy(
        NodeCondition("metro"),
        lambda to, been: hop if to == "cloud" and b"caf%C3%A9" not in been else None,
        passed=lambda *told: seen.append(told),
    )
    errors: list[BaseException] = []
    listener = Listener(relay.find, errors.append, hops=True)
    await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        yield Peer(neighbor, hop, reader, writer, seen)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        listener.close()
        listener.abort()
        hop.close()
        await neighbor.stop()
    assert errors == []


def test_bytes_pass_undecoded_and_the_deadline_shrinks(run: Any) -> None:
    async def script(visit: Visit) -> None:
        visit.answer(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
            b"Inferway-Node: cloud\r\nInferway-Variant: tiny\r\nInferway-Time-Ms: 1.25\r\n"
            b"Inferway-Path: edge,metro,cloud\r\nInference-Header-Content-Length: 5\r\n"
            b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x00"
        )

    async def main() -> None:
        async with metro(script) as peer:
            status, headers, body = await peer.ask(
                f"{TO_CLOUD}Inferway-Path: edge\r\nInferway-Deadline-Ms: 250.5\r\n"
                "Inferway-Predicted-Ms: 12.25\r\nInferway-Protocol: 1\r\nInferway-New: x\r\n"
                "X-Request-Id: mine\r\nContent-Type: x/y\r\nContent-Encoding: br\r\n"
                "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
                "tracestate: b=2\r\nTraceState: a=1\r\n"
                "Inference-Header-Content-Length: 4\r\nAccept-Encoding: gzip\r\nX-Else: 1\r\n"
            )
            assert (status, body) == (200, b"\x1f\x8b\x00")
            assert headers["content-encoding"] == "gzip"
            assert headers["content-type"] == "application/octet-stream"
            assert headers["inference-header-content-length"] == "5"
            assert headers["inferway-node"] == "cloud"
            assert headers["inferway-variant"] == "tiny"
            assert headers["inferway-path"] == "edge,metro,cloud"
            own_ms, theirs = headers["inferway-time-ms"].split(",")
            assert float(own_ms) > 0.0
            assert theirs == "1.25"
            (visit,) = peer.neighbor.visits
            assert visit.body == BODY
            assert visit.headers["inferway-path"] == "edge,metro"
            assert visit.headers["inferway-node"] == "cloud"
            assert visit.headers["inferway-variant"] == "tiny"
            assert visit.headers["inferway-protocol"] == "1"
            assert 0.0 < float(visit.headers["inferway-deadline-ms"]) < 250.5
            assert float(visit.headers["inferway-predicted-ms"]) == 12.25
            assert visit.headers["x-request-id"] == "mine"
            assert visit.headers["traceparent"].endswith("b7ad6b7169203331-01")
            assert visit.headers["tracestate"] == "b=2,a=1"
            assert visit.headers["content-type"] == "x/y"
            assert visit.headers["content-encoding"] == "br"
            assert visit.headers["inference-header-content-length"] == "4"
            assert visit.headers["accept-encoding"] == "gzip"
            assert "x-else" not in visit.headers
            assert peer.seen == [("task", "edge")]

    run(main())


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        (f"{TO_CLOUD}Inferway-Path: edge,metro,isp\r\n", 508, "has come back to node metro"),
        (
            f"{TO_CLOUD}Inferway-Path: {','.join(f'n{i}' for i in range(MAX_HOPS + 1))}\r\n",
            508,
            f"come through {MAX_HOPS + 1} nodes",
        ),
        (TO_CLOUD, 400, "needs the headers"),
        ("Inferway-Path: edge\r\nInferway-Variant: tiny\r\n", 400, "needs the headers"),
        (f"{TO_CLOUD}Inferway-Path: edge\r\nInferway-Deadline-Ms: nan\r\n", 400, "a number"),
        (f"{TO_CLOUD}Inferway-Path: edge\r\nInferway-Protocol: 2\r\n", 400, "protocol '2'"),
        (f"{TO_CLOUD}Inferway-Path: edge\r\nInferway-Protocol: x\r\n", 400, "protocol 'x'"),
        (f"{TO_CLOUD}Inferway-Path: edge\r\nInferway-Predicted-Ms: x\r\n", 400, "a number"),
        (
            "Inferway-Node: moon\r\nInferway-Variant: tiny\r\nInferway-Path: edge\r\n",
            503,
            "node metro has no way to node moon now",
        ),
        (
            f"{TO_CLOUD}Inferway-Path: edge,cloud\r\n",
            503,
            "node metro has no way to node cloud now",
        ),
        (
            f"{TO_CLOUD}Inferway-Path: edge,caf%C3%A9\r\n",
            503,
            "node metro has no way to node cloud now",
        ),
        (
            "Inferway-Node: metro\r\nInferway-Variant: tiny\r\nInferway-Path: edge\r\n",
            503,
            "variant 'tiny' of task 'task' does not run on metro now",
        ),
    ],
)
def test_what_cannot_go_on_is_refused_unserved(
    run: Any, headers: str, status: int, said: str
) -> None:
    async def main() -> None:
        async with metro() as peer:
            found, told, body = await peer.ask(headers)
            assert found == status
            assert said in json.loads(body)["error"]
            assert told["inferway-unserved"] == "1"
            assert told["inferway-node"] == "metro"
            assert told["inferway-path"].endswith("metro")
            assert peer.neighbor.visits == []
            assert peer.seen == []

    run(main())


def test_the_last_node_that_may_is_let_through(run: Any) -> None:
    async def main() -> None:
        async with metro() as peer:
            path = ",".join(f"n{i}" for i in range(MAX_HOPS))
            status, _, _ = await peer.ask(f"{TO_CLOUD}Inferway-Path: {path}\r\n")
            assert status == 200
            assert peer.neighbor.visits[0].headers["inferway-path"].count(",") == MAX_HOPS

    run(main())


def test_an_unreachable_neighbor_is_told_as_unserved_and_a_dying_one_is_not(run: Any) -> None:
    async def script(visit: Visit) -> None:
        visit.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhal")
        visit.writer.close()

    async def main() -> None:
        async with metro(script) as peer:
            status, headers, body = await peer.ask(f"{TO_CLOUD}Inferway-Path: edge\r\n")
            assert status == 502
            assert "in the middle of its answer" in json.loads(body)["error"]
            assert "inferway-unserved" not in headers
            await peer.neighbor.stop()
            for said in ("connection refused", "connection refused"):  # the second is not tried
                status, headers, body = await peer.ask(f"{TO_CLOUD}Inferway-Path: edge\r\n")
                assert status == 503
                assert said in json.loads(body)["error"]
                assert headers["inferway-unserved"] == "1"
                assert headers["retry-after"] == "1"
            assert peer.hop.sent == 2

    run(main())


def test_a_sender_that_goes_takes_its_request_back(run: Any) -> None:
    async def script(visit: Visit) -> None:
        await asyncio.sleep(LIMIT_S)

    async def main() -> None:
        async with metro(script) as peer:
            peer.send(f"{TO_CLOUD}Inferway-Path: edge\r\n")
            await until(lambda: len(peer.neighbor.visits) == 1)
            peer.writer.transport.abort()
            await until(lambda: len(peer.hop._busy) == 0)
            assert peer.hop.failures == 0

    run(main())


def test_names_of_any_kind_fit_into_headers() -> None:
    strange = "a,b c/ü"
    trail = ResponseHeaders(NodeCondition(strange, degraded="node x is away: ü"))
    lines = trail.own(b"edge", 0.001, strange, unserved=False).decode("ascii")
    assert f"Inferway-Path: edge,{encoded(strange).decode()}\r\n" in lines
    assert "Inferway-Degraded: node x is away: %C3%BC\r\n" in lines
    name = encoded(strange)
    heading, left_s, predicted_s = forward_headers_of(
        (name, name, name + b",isp", None, None, None), b"metro"
    )
    assert (heading.node, heading.variant, heading.entry) == (strange,) * 3
    assert (left_s, predicted_s) == (math.inf, 0.0)
    with pytest.raises(RefusalError, match="has come back"):
        forward_headers_of((b"x", b"y", name, None, None, None), name)


def test_only_the_task_whose_site_has_changed_is_served_anew() -> None:
    signature = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))

    def site(task: str) -> TaskSite:
        fleet = Fleet(("tiny",), np.array([1e3]), np.array([0.6]), np.array([1]))
        dispatcher = Dispatcher(fleet, "fastest-only", target=None)
        return TaskSite.of(
            Pool(task, signature, dispatcher, [NullRuntime(signature)], PoolOptions(node="metro"))
        )

    relay = Proxy(NodeCondition("metro"), lambda to, been: None)
    one, other, again = site("one"), site("other"), site("other")
    for served in (one, other):
        relay.serve(served)
    before = dict(relay._infers)
    assert [infers["tiny"].site for infers in before.values()] == [one, other]
    for served in (one, again):
        relay.serve(served)
    assert relay._infers["one"]["tiny"] is before["one"]["tiny"]
    assert relay._infers["other"]["tiny"].site is again
    one.present = None
    relay.serve(one)
    assert list(relay._infers) == ["other"]
