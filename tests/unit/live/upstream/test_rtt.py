from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Set
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neighbor import LIMIT_S, Neighbor, Visit, until

from inferway.live.http.connection import Listener
from inferway.live.node.proxy import Proxy
from inferway.live.request import NodeCondition
from inferway.live.upstream import rtt as estimates
from inferway.live.upstream import upstream as upstreams
from inferway.live.upstream.headers import ConnectError, Response
from inferway.live.upstream.rtt import (
    ENOUGH,
    FIRST,
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    SEGMENTS_BYTES,
    WAIT_S,
    RoundTrips,
    RttEstimator,
    differ,
)
from inferway.live.upstream.upstream import Upstream

HEAD = b"POST /v2/models/task/infer HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, None]], None]:
    def to_its_end(main: Coroutine[Any, Any, None]) -> None:
        asyncio.run(main)

    return to_its_end


class Told:
    """What was told of one link, and samples for it at even distances."""

    def __init__(self) -> None:
        self.by_s: list[float] = []
        self.link = RttEstimator(lambda _, by_s: self.by_s.append(by_s), 0.0)
        self.now_s = 0.0

    def hear(self, *rtts_s: float) -> list[bool]:
        found = []
        for rtt_s in rtts_s:
            self.now_s += 1.0
            found.append(self.link.sample(rtt_s, self.now_s - rtt_s, self.now_s))
        return found


def test_the_first_few_samples_make_the_first_estimate() -> None:
    told = Told()
    told.hear(*[0.006] * (FIRST - 2), 0.5)
    assert told.link.rtt_s != told.link.rtt_s  # not a number
    told.hear(0.4)
    assert told.link.rtt_s == 0.006
    assert told.by_s == []


def test_a_rise_and_a_fall_take_a_few_samples() -> None:
    told = Told()
    told.hear(*[0.006] * FIRST)
    assert told.hear(0.31, 0.30, 0.29) == [True] * ENOUGH
    assert told.by_s == [pytest.approx(0.294)]
    assert told.hear(0.31, 0.28) == [False, False]
    assert told.hear(0.006, 0.007, 0.005) == [True] * ENOUGH
    assert told.by_s[1:] == [pytest.approx(-0.294)]
    assert told.link.rtt_s == 0.006


def test_noise_and_single_late_answers_move_nothing() -> None:
    told = Told()
    told.hear(*[0.02] * FIRST)
    assert told.hear(0.0245, 0.0155, 0.022) == [False] * 3
    assert told.hear(*[0.3, 0.3, 0.02] * 5) == [True, True, False] * 5
    assert told.hear(*[0.3, 0.3, 0.001] * 5) == [True] * 15  # to both sides
    assert told.by_s == []


@pytest.mark.parametrize(("before_s", "after_s"), [(0.006, 0.3), (0.3, 0.006)])
def test_what_was_on_its_way_at_a_change_does_not_undo_it(before_s: float, after_s: float) -> None:
    told = Told()
    told.hear(*[before_s] * FIRST, *[after_s] * ENOUGH)
    link, now_s = told.link, told.now_s
    for _ in range(10):
        assert link.sample(before_s, now_s - before_s, now_s)
    assert len(told.by_s) == 1
    # Further to the same side it goes at once: the first to come were half late.
    further_s = 2 * after_s if after_s > before_s else after_s / 4
    for _ in range(ENOUGH):
        link.sample(further_s, now_s - further_s, now_s)
    assert len(told.by_s) == 2


@given(st.lists(st.floats(0.0, 2.0), max_size=60), st.floats(0.0, 2.0))
def test_it_comes_to_what_stays_and_tells_all_that_it_has_moved(
    samples: list[float], last_s: float
) -> None:
    told = Told()
    told.hear(*samples[:FIRST])
    first_s = told.link.rtt_s
    told.hear(*samples[FIRST:], *[last_s] * (FIRST + ENOUGH))
    assert not differ(last_s, told.link.rtt_s)
    if first_s == first_s:
        assert told.link.rtt_s == pytest.approx(first_s + sum(told.by_s), abs=1e-9)


def test_it_is_asked_soon_after_what_was_unexpected_and_seldom_while_idle() -> None:
    told = Told()
    told.hear(*[0.006] * FIRST)
    link = told.link

    def waits(times: int, used: bool = False) -> list[float]:
        found = []
        for _ in range(times):
            found.append(round(link.due_s - told.now_s, 9))
            told.now_s = link.due_s
            link.asked(told.now_s, used)
        return found

    assert waits(5) == [WAIT_S, 2 * WAIT_S, 4 * WAIT_S, LONGEST_WAIT_S, LONGEST_WAIT_S]
    assert waits(2, used=True) == [LONGEST_WAIT_S, WAIT_S]
    told.hear(0.3)
    assert waits(1) == [FIRST_WAIT_S]
    told.hear(*[0.3] * ENOUGH)
    # While it is slower than it was.
    assert waits(7) == [0.1, 0.2, 0.4, 0.8, WAIT_S, WAIT_S, WAIT_S]


def answer(path: str, times_ms: str) -> Response:
    return Response(200, b"", b"", b"cloud", b"tiny", path.encode(), times_ms.encode())


class Edge:
    """The ways of `edge`, all of which begin with metro."""

    def __init__(self) -> None:
        self.ways = RoundTrips(lambda: 0.0)
        self.now_s = 0.0
        self.told: dict[tuple[str, ...], list[tuple[float, float]]] = {}
        self.followers: dict[tuple[str, ...], Any] = {}

    def follow(self, *path: str) -> None:
        told = self.told[path] = []
        self.followers[path] = lambda by_s, now_s: told.append((by_s, now_s))
        self.ways.follow(path, self.followers[path])

    def hear(self, path: str, took_s: float, times_ms: str, count: int = 1) -> bool:
        strayed = False
        for _ in range(count):
            self.now_s += 1.0
            one = answer(path, times_ms)
            self.ways.learn(one, self.now_s - took_s, self.now_s)
            strayed = strayed or one.strayed
        return strayed


def test_every_link_on_the_way_is_told_from_the_others() -> None:
    edge = Edge()
    edge.follow("metro")
    edge.follow("metro", "cloud")
    assert not edge.hear("edge,metro,cloud", 0.050, "42.00,20.00", FIRST)
    assert edge.ways.round_trip_s(("metro",)) == pytest.approx(0.008)
    assert edge.ways.round_trip_s(("metro", "cloud")) == pytest.approx(0.030)
    # Another service time is none of the way's.
    assert not edge.hear("edge,metro,cloud", 0.450, "442.00,420.00", 10)
    # The far link: who is at metro is where it was.
    assert edge.hear("edge,metro,cloud", 0.328, "320.00,20.00", ENOUGH)
    assert edge.told["metro",] == []
    assert edge.told["metro", "cloud"] == [(pytest.approx(0.278), pytest.approx(0.308))]
    # The near one, as seen by requests that metro itself has answered.
    assert edge.hear("edge,metro", 0.120, "20.00", ENOUGH)
    assert edge.told["metro",] == [(pytest.approx(0.092), pytest.approx(0.100))]
    assert edge.told["metro", "cloud"][1:] == [(pytest.approx(0.092), pytest.approx(0.400))]


def test_only_what_is_followed_is_kept() -> None:
    edge = Edge()
    edge.hear("edge,metro,cloud", 0.050, "42.00,20.00", 10)
    assert edge.ways.round_trip_s(("metro",)) is None
    edge.follow("metro")
    edge.hear("edge,metro,cloud", 0.050, "42.00,20.00", 10)
    assert edge.ways.round_trip_s(("metro",)) is None  # part of a way that nobody follows
    edge.hear("edge,metro", 0.050, "42.00", 10)
    assert edge.ways.round_trip_s(("metro",)) == pytest.approx(0.008)
    edge.ways.unfollow(("metro",), edge.followers["metro",])
    assert not edge.ways.followed
    assert edge.ways.due(100.0) == []
    edge.hear("edge,metro", 0.500, "42.00", 10)
    assert edge.told["metro",] == []
    # What was learned is not forgotten.
    assert edge.ways.round_trip_s(("metro",)) == pytest.approx(0.458)


@pytest.mark.parametrize(
    ("path", "times"), [("", ""), ("edge,metro", ""), ("edge,metro", "soon"), ("x,y,z", "1.0")]
)
def test_nonsense_teaches_nothing(path: str, times: str) -> None:
    edge = Edge()
    edge.follow("metro")
    assert not edge.hear(path, 0.05, times, 10)
    assert edge.ways.round_trip_s(("metro",)) is None
    for times in ("nan", "inf", "-1.0"):
        assert not edge.hear("edge,metro", 0.05, times, 10)
    assert edge.ways.round_trip_s(("metro",)) is None
    # What an impossible time would leave for the links behind it is no sample either.
    edge.follow("metro", "cloud")
    for times in ("nan,1.00", "inf,1.00", "-1.0,1.00"):
        assert not edge.hear("edge,metro,cloud", 0.05, times, 10)
    assert edge.ways.round_trip_s(("metro", "cloud")) is None
    # One that says that it took longer than it did is at no distance, and not behind us.
    edge.hear("edge,metro", 0.05, "60.00", FIRST)
    rtt_s = edge.ways.round_trip_s(("metro",))
    assert rtt_s is not None
    assert 0.0 < rtt_s < 1e-4


def test_ever_new_nodes_are_forgotten_when_nobody_follows_them() -> None:
    edge = Edge()
    edge.follow("metro", "cloud")
    for number in range(5000):
        edge.follow("metro", f"new-{number}")
        path = "metro", f"new-{number}"
        edge.ways.unfollow(path, edge.followers[path])
    assert len(edge.ways._links) <= 1024
    edge.hear("edge,metro,cloud", 0.5, "440.00,400.00", FIRST)
    assert edge.ways.round_trip_s(("metro", "cloud")) == pytest.approx(0.1)


def test_a_way_is_asked_once_for_all_of_its_links() -> None:
    edge = Edge()
    for path in (("metro",), ("metro", "cloud"), ("metro", "east")):
        edge.follow(*path)
    assert edge.ways.due(0.0) == []
    assert edge.ways.due(10.0) == [("metro", "cloud"), ("metro", "east")]
    edge.ways.asked(("metro", "cloud"), 10.0, False)
    assert edge.ways.due(10.0) == [("metro", "east")]
    edge.ways.asked(("metro", "east"), 10.0, False)
    assert edge.ways.due(10.0) == []
    assert edge.ways.due_s == 10.0 + WAIT_S


async def ask(hop: Upstream, body: bytes) -> None:
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    hop.send(HEAD % len(body), body, ended.set_result)
    found = await asyncio.wait_for(ended, LIMIT_S)
    assert isinstance(found, Response)


def test_small_requests_are_samples_and_large_ones_are_none(run: Any) -> None:
    async def script(visit: Visit) -> None:
        await asyncio.sleep(0.02)
        visit.answer(
            b"HTTP/1.1 200 OK\r\nInferway-Path: edge,metro\r\nInferway-Time-Ms: 5.00\r\n"
            b"Content-Length: 2\r\n\r\nok"
        )

    async def main() -> None:
        neighbor = await Neighbor(script).start()
        hop = Upstream("metro", "127.0.0.1", neighbor.port, rtt_s=0.1)
        hop.follow(("metro",), lambda by_s, now_s: None)
        for _ in range(FIRST):
            await ask(hop, bytes(SEGMENTS_BYTES))
        assert hop.trips.round_trip_s(("metro",)) is None
        took_s = []
        for _ in range(FIRST):
            begun_s = time.monotonic()
            await ask(hop, b"small")
            took_s.append(time.monotonic() - begun_s)
        # An emulated latency is part of the way, the time at the neighbor is not.
        rtt_s = hop.trips.round_trip_s(("metro",))
        assert rtt_s is not None
        assert 0.1149 < rtt_s < max(took_s)
        hop.close()
        await neighbor.stop()

    run(main())


@contextlib.asynccontextmanager
async def chain() -> AsyncIterator[tuple[Upstream, Upstream, set[bytes]]]:
    """The hop from edge to metro, and that from metro to cloud; two nodes that serve nothing.

    The set takes the nodes that what metro passes on has come through.
    """
    came: set[bytes] = set()

    def onwards(to: str, been: Set[bytes]) -> Upstream | None:
        came.update(been)
        return onward if to == "cloud" else None

    errors: list[BaseException] = []
    cloud = Listener(
        Proxy(NodeCondition("cloud"), lambda to, been: None).find, errors.append, hops=True
    )
    await cloud.start("127.0.0.1", 0)
    onward = Upstream("cloud", "127.0.0.1", cloud.port)
    relay = Proxy(NodeCondition("metro"), onwards)
    metro = Listener(relay.find, errors.append, hops=True)
    await metro.start("127.0.0.1", 0)
    hop = Upstream("metro", "127.0.0.1", metro.port)
    try:
        yield hop, onward, came
    finally:
        hop.close()
        onward.close()
        for listener in (metro, cloud):
            listener.close()
            listener.abort()
    assert errors == []


def test_ways_that_nobody_uses_are_asked_to_their_end(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstreams, "LOOK_S", 0.001)
    for name in ("FIRST_WAIT_S", "WAIT_S", "LONGEST_WAIT_S"):
        monkeypatch.setattr(estimates, name, 0.005)

    async def main() -> None:
        async with chain() as (hop, onward, came):
            told: dict[str, list[float]] = {"metro": [], "cloud": []}
            for path in (("metro",), ("metro", "cloud")):
                hop.follow(path, lambda by_s, _, to=path[-1]: told[to].append(by_s), me="edge")
            await until(lambda: hop.trips.round_trip_s(("metro", "cloud")) is not None)
            assert came == {b"edge"}  # it does not go back there
            onward.rtt_s = 0.2
            await until(lambda: sum(told["cloud"]) > 0.15)
            assert sum(told["metro"]) < 0.15
            onward.rtt_s = 0.0
            await until(lambda: sum(told["cloud"]) < 0.05)
            assert hop.sent == 0  # no requests
            assert hop.opened <= 2

    run(main())


def test_nobody_is_asked_for_who_follows_nothing(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstreams, "LOOK_S", 0.001)
    for name in ("FIRST_WAIT_S", "WAIT_S", "LONGEST_WAIT_S"):
        monkeypatch.setattr(estimates, name, 0.005)

    async def main() -> None:
        neighbor = await Neighbor().start()
        hop = Upstream("metro", "127.0.0.1", neighbor.port)

        def told(by_s: float, now_s: float) -> None: ...

        hop.follow(("metro",), told)
        await until(lambda: neighbor.probes >= 3)
        hop.trips.unfollow(("metro",), told)
        await asyncio.sleep(0)
        asked, begun_s = neighbor.probes, time.monotonic()
        await until(lambda: time.monotonic() - begun_s > 0.05)
        assert neighbor.probes <= asked + 1
        # Nor while the breaker asks.
        hop.follow(("metro",), told)
        neighbor.mute = True
        hop.lose("gone")
        asked, begun_s = neighbor.probes, time.monotonic()
        await until(lambda: time.monotonic() - begun_s > 0.2)
        assert neighbor.probes <= asked + 2
        hop.close()
        await neighbor.stop()

    run(main())


def test_questions_that_are_lost_count_for_nothing(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstreams, "LOOK_S", 0.001)
    for name in ("FIRST_WAIT_S", "WAIT_S", "LONGEST_WAIT_S"):
        monkeypatch.setattr(estimates, name, 0.005)

    async def main() -> None:
        neighbor = await Neighbor().start()
        await neighbor.stop()
        hop = Upstream("metro", "127.0.0.1", neighbor.port)
        looked: list[Any] = []
        plain = hop._looked

        def seen(path: tuple[str, ...], result: Any) -> None:
            looked.append(result)
            plain(path, result)

        monkeypatch.setattr(hop, "_looked", seen)
        hop.follow(("metro",), lambda by_s, now_s: None)
        await until(lambda: len(looked) >= 3)
        assert all(isinstance(one, ConnectError) for one in looked)
        assert hop.failures == 0
        assert hop.breaker.closed
        hop.close()

    run(main())


def test_all_who_follow_a_way_are_told() -> None:
    edge = Edge()
    edge.follow("metro")
    told: list[float] = []
    edge.ways.follow(("metro",), lambda by_s, _: told.append(by_s))
    edge.hear("edge,metro", 0.050, "42.00", FIRST)
    edge.hear("edge,metro", 0.350, "42.00", ENOUGH)
    edge.ways.unfollow(("metro",), edge.followers["metro",])
    edge.hear("edge,metro", 0.050, "42.00", ENOUGH)
    assert [by_s for by_s, _ in edge.told["metro",]] == pytest.approx([0.3])
    assert told == pytest.approx([0.3, -0.3])
