from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from neighbor import LIMIT_S, OK, Neighbor, Visit, until

from inferway.live.upstream import breaker, upstream
from inferway.live.upstream.headers import ConnectError, Response
from inferway.live.upstream.upstream import Upstream

HEAD = b"POST /v2/models/task/infer HTTP/1.1\r\nHost: test\r\nContent-Length: 4\r\n\r\n"
BODY = b"\x00\xffab"


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        asyncio.run(main)

    return to_its_end


def ask(hop: Upstream, body: bytes | list[bytes] = BODY) -> tuple[Any, asyncio.Future[Any]]:
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    return hop.send(HEAD, body, ended.set_result), ended


async def result(ended: asyncio.Future[Any]) -> Response | ConnectError:
    found: Response | ConnectError = await asyncio.wait_for(ended, LIMIT_S)
    return found


def hop_to(neighbor: Neighbor, **options: Any) -> Upstream:
    return Upstream("metro", "127.0.0.1", neighbor.port, **options)


async def end(hop: Upstream, neighbor: Neighbor) -> None:
    hop.close()
    await neighbor.stop()


def test_bytes_go_out_and_come_back_as_they_are_and_connections_are_kept(run: Any) -> None:
    async def script(visit: Visit) -> None:
        visit.answer(
            b"HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nInferway-Node: cloud\r\n"
            b"Inferway-Variant: tiny\r\nInferway-Path: edge,metro,cloud\r\n"
            b"Inferway-Time-Ms: 2.00,1.00\r\nInferway-Unserved: 1\r\nX-Else: 1\r\n"
            b"Inference-Header-Content-Length: 3\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\n"
            + visit.body
        )

    async def main() -> None:
        neighbor = await Neighbor(script).start()
        hop = hop_to(neighbor)
        for body in (BODY, [BODY[:1], BODY[1:]]):
            answer = await result(ask(hop, body)[1])
            assert isinstance(answer, Response)
            assert (answer.status, answer.kind, answer.body) == (200, b"x/y", BODY)
            assert (answer.node, answer.variant) == (b"cloud", b"tiny")
            assert (answer.path, answer.times) == (b"edge,metro,cloud", b"2.00,1.00")
            assert answer.unserved
            assert (answer.json_length, answer.retry_after) == (b"3", b"7")
            assert answer.lines == (b"Inference-Header-Content-Length: 3\r\nRetry-After: 7\r\n")
        assert hop.opened == 1
        assert len(hop._busy) == 0
        await asyncio.gather(*(result(ask(hop)[1]) for _ in range(5)))
        assert hop.opened == 5
        await end(hop, neighbor)

    run(main())


def test_a_request_that_comes_as_a_connection_is_made_gets_one_of_its_own(run: Any) -> None:
    async def never(visit: Visit) -> None:
        await visit.writer.wait_closed()

    async def main() -> None:
        neighbor = await Neighbor(never).start()
        hop = hop_to(neighbor)
        ask(hop)
        # Not a step later: who made the connection has taken the first, and has not ended.
        async with asyncio.timeout(LIMIT_S):
            while hop.opened == 0:
                await asyncio.sleep(0)
        ask(hop)
        await until(lambda: len(neighbor.visits) == 2)
        await end(hop, neighbor)

    run(main())


def test_half_of_an_emulated_latency_passes_on_each_way(run: Any) -> None:
    async def main() -> None:
        came: list[float] = []

        async def script(visit: Visit) -> None:
            came.append(time.monotonic())
            visit.answer(OK)

        neighbor = await Neighbor(script).start()
        hop = hop_to(neighbor, rtt_s=0.06)
        begun_s = time.monotonic()
        assert isinstance(await result(ask(hop)[1]), Response)
        ended_s = time.monotonic()
        assert came[0] - begun_s >= 0.029
        assert ended_s - came[0] >= 0.029
        assert ended_s - begun_s < 5.0
        await end(hop, neighbor)

    run(main())


def test_a_canceled_request_closes_its_connection_and_no_other(run: Any) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def script(visit: Visit) -> None:
            await go.wait()
            visit.answer(OK)

        neighbor = await Neighbor(script).start()
        hop = hop_to(neighbor)
        (first, dead), (_, alive) = ask(hop), ask(hop)
        await until(lambda: len(neighbor.visits) == 2)
        first.cancel()
        first.cancel()
        go.set()
        assert isinstance(await result(alive), Response)
        await until(lambda: neighbor.ended == 1)
        assert not dead.done()
        assert hop.breaker.closed
        assert hop.failures == 0
        # Nor does one that had not been written yet come out.
        late = hop_to(neighbor, rtt_s=0.02)
        sending, dead = ask(late)
        sending.cancel()
        await asyncio.sleep(0.05)
        assert len(neighbor.visits) == 2
        assert not dead.done()
        late.close()
        await end(hop, neighbor)

    run(main())


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "before it answered"),
        (OK[:-1], "in the middle of its answer"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "is not understood"),
    ],
)
def test_a_connection_that_ends_early_is_told_and_nothing_is_sent_again(
    run: Any, raw: bytes, said: str
) -> None:
    async def script(visit: Visit) -> None:
        visit.answer(raw)
        if not raw.startswith(b"SSH"):
            visit.writer.close()

    async def main() -> None:
        neighbor = await Neighbor(script).start()
        hop = hop_to(neighbor)
        failure = await result(ask(hop)[1])
        assert isinstance(failure, ConnectError)
        assert said in failure.reason
        assert "metro" in failure.reason
        assert not failure.unserved
        assert len(neighbor.visits) == 1
        assert hop.breaker.closed
        await end(hop, neighbor)

    run(main())


def test_an_idle_connection_that_was_closed_is_not_used(run: Any) -> None:
    async def main() -> None:
        neighbor = await Neighbor().start()
        hop = hop_to(neighbor)
        await result(ask(hop)[1])
        await neighbor.stop()
        await neighbor.start()
        assert isinstance(await result(ask(hop)[1]), Response)
        assert hop.opened == 2
        await end(hop, neighbor)

    run(main())


def test_no_answer_in_time_is_told(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "LONGEST_S", 0.1)

    async def script(visit: Visit) -> None:
        await asyncio.sleep(LIMIT_S)

    async def main() -> None:
        neighbor = await Neighbor(script).start()
        hop = hop_to(neighbor)
        failure = await result(ask(hop)[1])
        assert isinstance(failure, ConnectError)
        assert failure.late
        assert not failure.unserved
        assert "within 0.1 s" in failure.reason
        await end(hop, neighbor)

    run(main())


def test_a_refused_connection_opens_the_breaker_until_a_probe_is_answered(run: Any) -> None:
    async def main() -> None:
        neighbor = await Neighbor().start()
        hop = hop_to(neighbor)
        told: list[tuple[bool, str]] = []
        hop.watch(lambda works, reason: told.append((works, reason)))
        await neighbor.stop()
        begun = [ask(hop)[1] for _ in range(3)]
        for ended in begun:
            failure = await result(ended)
            assert isinstance(failure, ConnectError)
            assert failure.unserved
            assert failure.reason == "node metro cannot be reached: connection refused"
        assert told == [(False, "node metro cannot be reached: connection refused")]
        assert not hop.breaker.closed
        failure = await result(ask(hop)[1])
        assert isinstance(failure, ConnectError)
        assert failure.unserved
        assert hop.sent == 3  # nothing was even tried
        await neighbor.start()
        await until(lambda: len(told) == 2)
        assert told[1] == (True, "")
        assert neighbor.probes == 1
        assert neighbor.visits == []
        assert isinstance(await result(ask(hop)[1]), Response)
        await end(hop, neighbor)

    run(main())


def test_one_that_is_said_to_be_back_is_asked_at_once(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "ALIVE_S", 60.0)

    async def main() -> None:
        neighbor = await Neighbor().start()
        # Left to itself, it would wait a minute for the first answer.
        hop = hop_to(neighbor)
        neighbor.mute = True
        hop.hasten()
        assert neighbor.probes == 0  # it is in use
        hop.lose("gone")
        await until(lambda: neighbor.probes == 1)
        neighbor.mute = False
        hop.hasten()
        await until(lambda: hop.breaker.closed)
        assert neighbor.probes == 2
        await end(hop, neighbor)

    run(main())


def test_a_neighbor_known_to_be_gone_fails_what_waits_for_it(run: Any) -> None:
    async def script(visit: Visit) -> None:
        await asyncio.sleep(LIMIT_S)

    async def main() -> None:
        neighbor = await Neighbor(script).start()
        hop = hop_to(neighbor)
        _, ended = ask(hop)
        await until(lambda: len(neighbor.visits) == 1)
        hop.lose("node metro is not alive")
        failure = await result(ended)
        assert failure == ConnectError("node metro is not alive")
        assert not hop.breaker.closed
        await until(lambda: hop.breaker.closed)  # it does answer probes
        await end(hop, neighbor)

    run(main())


def test_a_probe_that_is_not_answered_is_given_up(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "ALIVE_S", 0.05)

    async def main() -> None:
        neighbor = await Neighbor().start()
        neighbor.mute = True
        hop = hop_to(neighbor)
        hop.lose("gone")
        await until(lambda: "did not say" in hop.reason)
        assert len(hop._busy) == 0
        assert neighbor.probes == 1
        assert not hop.breaker.closed
        neighbor.mute = False
        await until(lambda: hop.breaker.closed)
        await end(hop, neighbor)

    run(main())
