"""Requests of neighbors, whatever their headers hold: refused, answered or forwarded."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from contextlib import suppress
from pathlib import Path

from chain import BODY, Node, line

sys.path.insert(0, str(Path(__file__).parents[3]))

from fuzzed import HTTP_TOKENS
from fuzzing import BATCH, LIMIT_S, Course, few_or_many, limited
from mutation import respelled

HONEST = {501, 502, 503, 504, 505, 508}
"""What is not offered, not there, too late or in a ring are true answers to valid requests."""
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [A-Z]")

HOP = (
    b"POST /v2/models/task/infer HTTP/1.1\r\nHost: 127.0.0.1:8003\r\nInferway-Node: cloud\r\n"
    b"Inferway-Variant: tiny\r\nInferway-Path: edge\r\nInferway-Deadline-Ms: 1000.000\r\n"
    b"Inferway-Predicted-Ms: 10.000\r\nX-Request-Id: mine\r\ntraceparent: 00-%s-%s-01\r\n"
    b"tracestate: a=b\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (b"0af7" * 8, b"b7ad" * 4, len(BODY), BODY)
)
HOP_TOKENS = (
    *HTTP_TOKENS,
    *(b"Inferway-Node: ", b"Inferway-Variant: ", b"Inferway-Path: ", b"Inferway-Deadline-Ms: "),
    b"Inferway-Predicted-Ms: ",
    *(b"cloud", b"edge", b"tiny", b"a,b,c", b",", b"%C3%A9", b"%", b"%ff", b"n," * 70, b"nan"),
    *(b"-5", b"inf", b"1e400", b"/v2/models/task/infer", b"/v2/models/%00/infer", b"/v2"),
)  # fmt: skip


def hop(choose: random.Random) -> tuple[str, bytes, int]:
    """Whose port it comes to, the bytes, and where they come apart."""
    to = choose.choice(["edge", "cloud"])
    raw = respelled(HOP, HOP_TOKENS, choose)
    if choose.random() < 0.03:
        raw = choose.randbytes(choose.randrange(200))
    return to, raw, choose.randrange(len(raw) + 1) if choose.random() < 0.2 else len(raw)


async def alive(node: Node) -> None:
    """Ask a node's port for neighbors how it is: what had come before has been read by then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.peers.port)
    writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()


async def ask(nodes: dict[str, Node], given: list[tuple[str, bytes, int]]) -> list[bytes]:
    """Send to nodes' ports for neighbors, in two pieces, and read what comes until they end it."""
    streams = [await asyncio.open_connection("127.0.0.1", nodes[to].peers.port) for to, *_ in given]
    for (_, writer), (_, raw, at) in zip(streams, given, strict=True):
        with suppress(ConnectionError):  # it may end while it is still being sent to
            for piece in (raw[:at], raw[at:]):
                writer.write(piece)
                await writer.drain()
    for node in 2 * [*nodes.values()]:  # one may forward to the other
        await alive(node)
        while node.site.in_flight:
            await asyncio.sleep(0.0005)
    # What has come whole is answered; a request that has not come to its end waits for the rest.
    answers = []
    for reader, writer in streams:
        said = b""
        with suppress(ConnectionError):
            writer.write_eof()
            while piece := await reader.read(65536):
                said += piece
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        answers.append(said)
    return answers


@few_or_many
def test_hop_headers(count: int) -> None:
    async def main() -> None:
        async with line("edge", "cloud") as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"))
            course = Course("hops", hop, count)
            nodes = {"edge": edge, "cloud": cloud}
            for batch in course.batches(BATCH):
                with limited(5 * LIMIT_S):
                    answers = await ask(nodes, batch)
                for place, said in enumerate(answers):
                    statuses = [int(one) for one in _STATUS.findall(said)]
                    assert not said or statuses, course.told(place)
                    bad = [one for one in statuses if one >= 500 and one not in HONEST]
                    assert not bad, course.told(place)
                assert edge.errors + cloud.errors == [], course.told(0)
                for node in nodes.values():
                    node.seen.clear()
            (said,) = await ask(nodes, [("cloud", HOP, len(HOP))])
            assert said.startswith(b"HTTP/1.1 200"), said

    asyncio.run(main())
